"""Numbered queries and documents, and an encoder under which each query finds its document."""

import json

import numpy as np

from lathe.training.encoder.encoder import Encoding
from tests.training.conftest import HashingEncoder

ADAPTER = [{"kind": "query_adapter", "learning_rate": 3e-3, "steps": 200}]


class NumberEncoder(HashingEncoder):
    """Encoder of "document N" as a random vector, and of "query N" as a noisy linear map of that vector."""

    prompts = {"query": "query: "}

    def __init__(self):
        self.asked = []
        self.mixing = np.eye(16) + 0.3 * np.random.default_rng(7).normal(size=(16, 16))

    def encode(self, texts, prompt_name=None, **options):
        self.asked.append((prompt_name, list(texts)))
        numbered = [text.split() for text in texts]
        if not all(len(words) == 2 and words[1].isdecimal() for words in numbered):
            return super().encode(texts)
        rows = np.array([np.random.default_rng(int(number)).normal(size=16) for _, number in numbered])
        for row, (kind, number) in enumerate(numbered):
            if kind.lower() == "query":
                noise = np.random.default_rng(1_000_000 + int(number)).normal(size=16)
                rows[row] = (rows[row] + 0.4 * noise) @ self.mixing
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        return Encoding(rows.astype(np.float32), np.ones(len(texts), np.int64))


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return str(path)


def pairs_of(numbers):
    return [{"query": f"query {n}", "document": f"document {n}"} for n in numbers]
