"""An embeddings API on the loopback address that speaks two protocols, counts what it is asked, and fails as told."""

import base64
import hashlib
import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np

WIDTH = 8
PROBE = "What is a lathe?"
"""One of the texts with which an encoder looks whether the space is the same."""


def vector_of(text, salt="", width=WIDTH):
    """Return the vector of a text, `(width,)` float32, drawn from its hash. It is not of unit length."""
    seed = int.from_bytes(hashlib.blake2b(f"{salt}{text}".encode(), digest_size=8).digest(), "big")
    return np.random.default_rng(seed).standard_normal(width).astype(np.float32)


def rows_of(texts, normalize=False, **how):
    """Return the vectors of texts as `vector_of` does. `normalize` makes them unit vectors."""
    rows = np.stack([vector_of(text, **how) for text in texts])
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize else rows


class EmbeddingsServer(ThreadingHTTPServer):
    """An embeddings API that answers a text with `vector_of`.

    Attributes:
        asked: texts of answered and failed calls, in order; those of probes are left out.
        calls: number of calls, those with probes included.
        headers: headers of the calls.
        bodies: bodies of the calls.
        paths: paths of all requests.
        script: called with this server, the number of the call from 0, and its body; may return a status, headers and
            payload (bytes or parts) to answer with instead, or None.
        change: called with the texts and their rows before they are answered; returns the rows.
        salt: another salt is another model.
        model: name of the model that answers state.
        headers_sent: headers of its answers.
        counted: whether answers have a number of tokens.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.guard = threading.Lock()
        self.reset()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        """Address without a path."""
        return f"http://127.0.0.1:{self.server_port}"

    def reset(self):
        """Forget what was asked, and answer as at first."""
        self.asked, self.calls, self.headers, self.bodies, self.paths = [], 0, [], [], []
        self.script, self.salt, self.model = None, "", "m"
        self.headers_sent, self.counted = {}, True
        self.change = lambda texts, rows: rows

    def count_asked(self):
        """Return how often each text was asked for."""
        return Counter(self.asked)

    def handle_error(self, request, client_address):
        """Ignore client disconnects."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        server = self.server
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        texts = body.get("input") or body.get("texts")
        with server.guard:
            number, server.calls = server.calls, server.calls + 1
            server.paths.append(self.path)
            server.headers.append({name.lower(): value for name, value in self.headers.items()})
            server.bodies.append(body)
            server.asked += [text for text in texts if PROBE not in texts]
        said = server.script(server, number, body) if server.script else None
        if said is None:
            width = body.get("dimensions") or body.get("output_dimension") or WIDTH
            rows = server.change(texts, rows_of(texts, salt=server.salt, width=width))
            said = self.build_answer(body, [self.write_row(row, body) for row in rows])
        self.answer(*said)

    def write_row(self, row, body):
        if body.get("encoding_format") == "base64":
            return base64.b64encode(np.asarray(row, np.float32).tobytes()).decode()
        return [float(number) for number in row]

    def build_answer(self, body, rows):
        tokens = 3 * len(rows) if self.server.counted else None
        if self.path.startswith("/v2/"):
            found = {"embeddings": {"float": rows}, "meta": {"billed_units": {"input_tokens": tokens}}}
        else:
            data = [{"index": index, "embedding": row} for index, row in enumerate(rows)]
            found = {"data": data, "model": self.server.model, "usage": {"prompt_tokens": tokens}}
        return 200, self.server.headers_sent, json.dumps(found).encode()

    def answer(self, status, headers, payload):
        self.send_response(status)
        if isinstance(payload, bytes):
            headers, payload = {"content-length": len(payload)} | headers, [payload]
        else:
            headers = {"connection": "close"} | headers
        for name, value in ({"content-type": "application/json"} | headers).items():
            self.send_header(name, str(value))
        self.end_headers()
        for part in payload:
            self.wfile.write(part)

    def log_message(self, *_):
        pass
