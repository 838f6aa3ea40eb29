"""Total budget of a job's folder: requests, and tokens of prompts and answers."""


class Budget:
    """Requests and tokens used so far, including those reserved for requests under way, and their limits.

    Args:
        max_requests: maximum number of requests; None for no limit.
        max_tokens: maximum number of tokens; None for no limit.
        requests: requests of earlier runs.
        tokens: tokens of earlier runs.
    """

    def __init__(self, max_requests: int | None, max_tokens: int | None, requests: int, tokens: int) -> None:
        self.max_requests, self.max_tokens = max_requests, max_tokens
        self.requests, self.tokens = requests, tokens

    def refusal_reason(self, tokens: int) -> str | None:
        """Return why a request of at most `tokens` tokens may not be sent, or None if it may; nothing is reserved."""
        if self.max_requests is not None and self.requests >= self.max_requests:
            return f"the budget of {self.max_requests:,} requests is spent"
        if self.max_tokens is not None and self.tokens + tokens > self.max_tokens:
            return f"the budget of {self.max_tokens:,} tokens leaves nothing for another request"
        return None

    def reserve(self, tokens: int) -> None:
        """Count a request, and reserve `tokens` tokens, the most it can use."""
        self.requests += 1
        self.tokens += tokens

    def settle(self, reserved: int, used: int) -> None:
        """Replace the tokens reserved for a request by the tokens it used."""
        self.tokens += used - reserved
