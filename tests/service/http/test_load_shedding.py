import asyncio
from types import SimpleNamespace

import pytest

from lathe.service.http.load_shedding import SheddingMiddleware


def ask(path, *rooms_full, method="POST", chunks=2):
    """Send a request. Return the answer, whether the middleware passed it on, and how many body chunks are unread."""
    left, sent, passed = list(range(chunks)), [], []
    queues = [SimpleNamespace(full=full, estimate_retry_seconds=lambda: 7) for full in rooms_full]
    engines = {str(number): SimpleNamespace(queue=queue) for number, queue in enumerate(queues)}

    async def app(scope, receive, send):
        passed.append(scope)

    async def receive():
        left.pop()
        return {"type": "http.request", "body": b"x", "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path}
    asyncio.run(SheddingMiddleware(app, SimpleNamespace(engines=engines))(scope, receive, send))
    return sent, bool(passed), len(left)


@pytest.mark.parametrize("path", ["/", "/embed", "/v1/embeddings"])
def test_embedding_requests_are_answered_429_while_every_admission_queue_is_full(path):
    sent, passed, left = ask(path, True, True)
    assert sent[0]["status"] == 429 and (b"retry-after", b"7") in sent[0]["headers"]
    assert b'"overloaded"' in sent[1]["body"]
    assert not passed and left == 0


def test_other_requests_pass_the_load_shedding_middleware():
    """A request also passes if one encoder has room."""
    assert ask("/embed", True, False)[1:] == ask("/reduce", True)[1:] == (True, 2)
    assert ask("/", True, method="GET")[1:] == ask("/health", True, method="GET")[1:] == (True, 2)
