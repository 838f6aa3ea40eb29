"""An encoder of sums of words, texts for it, and stores that lose hits on purpose."""

import hashlib

import numpy as np

from lathe.training.checkup.spaces import StoreEncoder
from lathe.training.checkup.store import Hits, Rows, Store, compare_all
from lathe.training.encoder.text_encoder import Encoding

WIDTH = 64


class WordEncoder:
    """Encoder whose vectors are sums of vectors of words, most of which lies in a quarter of the directions."""

    name, default_prompt_name = "words", None
    prompts = {"query": "", "document": "a passage of text"}

    def __init__(self, seed=0):
        self.directions = np.linalg.qr(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)))[0]
        self.words = {}

    def prompt(self, name):
        return self.prompts.get(name)

    def encode(self, texts, prompt_name=None, **options):
        prompt = self.prompts.get(prompt_name, "")
        words = [f"{prompt} {text}".split() for text in texts]
        self.words |= {word: self.encode_word(word) for word in {*sum(words, [])} - self.words.keys()}
        vectors = np.stack([sum(self.words[word] for word in row) for row in words])
        unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return Encoding(unit.astype(np.float32), np.ones(len(texts), np.int64))

    def encode_word(self, word):
        random = np.random.default_rng(int.from_bytes(hashlib.sha256(word.encode()).digest()[:8]))
        return random.normal(size=WIDTH) * np.where(np.arange(WIDTH) < WIDTH // 4, 4, 1) @ self.directions


def make_texts(count):
    """Return different texts of thirty words each."""
    random = np.random.default_rng(0)
    return [" ".join(f"word{number}" for number in random.integers(0, 500, 30)) for _ in range(count)]


def make_rows(vectors, texts=None, total=None):
    """Return rows whose ids are their numbers."""
    ids = [str(row) for row in range(len(vectors))]
    return Rows(ids, np.asarray(vectors, np.float32), texts, total or len(ids))


def known(encoder):
    """Return an encoder whose vectors are stored as they are."""
    return StoreEncoder(encoder, lambda vectors: vectors, lambda vectors: vectors)


class LossyStore(Store):
    """Store in memory whose search misses hits at a low effort, and that may compare rounded vectors."""

    effort_name, metric, name = "ef", "cosine", "lossy"

    def __init__(self, rows, misses=(), quantize=None):
        """Take the number of each query's first hits that are missed at the efforts 1, 2 and so on."""
        self.rows, self.misses, self.quantize = rows, misses, quantize
        self.efforts = tuple(range(1, len(misses) + 1))
        self.quantizer = None if quantize is None else "signs"

    def read(self, max_rows):
        return self.rows

    def search(self, queries, k, effort=None):
        missed = self.misses[(effort or 1) - 1] if self.misses else 0
        found = self.search_exactly(queries, k + missed)
        return Hits([row[missed:] for row in found.ids], [row[missed:] for row in found.scores], effort or 1)

    def search_exactly(self, queries, k, full=False):
        form = (lambda vectors: vectors) if full or self.quantize is None else self.quantize
        return compare_all(self.rows.ids, form(self.rows.vectors), form(queries), "cosine", k)
