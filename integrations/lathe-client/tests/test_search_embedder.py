"""What frameworks use: two sides of a search, in one space."""

import asyncio
import copy
import io
import json
import pickle
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from lathe_client import SearchEmbedder, SpaceMismatchError


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.bodies.append(body)
        buffer = io.BytesIO()
        np.save(buffer, np.full((len(body["inputs"]), 2), 0.5, np.float32))
        self.send_response(200)
        named = {"x-space-id": self.server.space, "x-chain": "none", "x-input-type": "query", "x-output-dtype": "float"}
        for name, value in (named | {"content-length": str(buffer.tell())}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(buffer.getvalue())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Start a server that answers every text with (0.5, 0.5)."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        running.daemon_threads, running.bodies, running.space = True, [], "space-a"
        running.url = f"http://127.0.0.1:{running.server_port}"
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def test_queries_and_documents_are_sent_with_their_prompt_side_chain_and_size(server):
    with SearchEmbedder(server.url, model="e5", chain="mine", dimensions=2, document_prompt_name="passage") as embedder:
        assert embedder.embed_query("q") == [0.5, 0.5]
        assert embedder.embed_documents(["a", "b"]) == [[0.5, 0.5]] * 2
    shared = {"output_dtype": "float", "model": "e5", "chain": "mine", "dimensions": 2}
    assert server.bodies == [
        {"inputs": ["q"], "input_type": "query"} | shared,
        {"inputs": ["a", "b"], "prompt_name": "passage", "input_type": "document"} | shared,
    ]


def test_no_documents_need_no_request(server):
    with SearchEmbedder(server.url) as embedder:
        assert embedder.embed_documents([]) == []
        assert asyncio.run(embedder.aembed_documents([])) == []
    assert not server.bodies


def test_the_first_answer_decides_on_the_space_and_others_are_refused(server):
    with SearchEmbedder(server.url) as embedder:
        assert embedder.space_id is None
        embedder.embed_query("q")
        assert embedder.space_id == "space-a"
        server.space = "space-b"
        with pytest.raises(SpaceMismatchError, match="space-a, space-b"):
            embedder.embed_documents(["a"])
    with SearchEmbedder(server.url, space_id="space-a") as embedder:
        with pytest.raises(SpaceMismatchError, match="space-a, space-b"):
            embedder.embed_query("q")


def test_asynchronous_calls_work_in_several_event_loops_one_after_another(server):
    async def ask(embedder):
        try:
            return [await embedder.aembed_query("q"), *await embedder.aembed_documents(["a", "b"])]
        finally:
            await embedder.aclose()

    with SearchEmbedder(server.url) as embedder:
        for _ in range(2):
            assert asyncio.run(ask(embedder)) == [[0.5, 0.5]] * 3


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda embedder: pickle.loads(pickle.dumps(embedder))])
def test_a_copy_has_the_settings_and_the_space_and_connections_of_its_own(server, duplicate):
    with SearchEmbedder(server.url, api_key="key", dimensions=2) as embedder:
        embedder.embed_query("q")
        with duplicate(embedder) as other:
            assert other == embedder and other.space_id == "space-a"
            assert other.embed_query("q") == [0.5, 0.5]
