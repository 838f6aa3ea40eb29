"""How much may be asked in all: requests, and tokens of prompts and answers."""


class Budget:
    """What is spent and what is promised.

    Args:
        max_requests: None for no limit.
        max_tokens: likewise.
        requests: spent by earlier runs.
        tokens: likewise.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None, requests: int, tokens: int) -> None:
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests, self.tokens = requests, tokens

    def lacking(self, tokens: int) -> str | None:
        """Why a request of at most so many tokens may not be sent; None if it may."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            return f"the budget of {self.max_requests:,} requests is spent"
        if self.max_tokens is not None and self.tokens + tokens > self.max_tokens:
            return f"the budget of {self.max_tokens:,} tokens leaves nothing for another request"
        return None

    def promise(self, tokens: int) -> None:
        """A request of at most so many tokens is sent."""
        self.requests += 1
        self.tokens += tokens

    def settle(self, promised: int, used: int) -> None:
        """It took these."""
        self.tokens += used - promised
