"""Fake encoders for workers, fake worker processes for engines and dispatchers, and what tests ask of them."""

import threading
from collections import deque

import numpy as np
import torch

from lathe.service.encoders.engine.work import EncodeOptions, EncoderInfo, PartResult, Reply
from lathe.service.errors import ServiceError
from lathe.training.encoder.batching import Batch
from lathe.training.encoder.encoder import WINDOW_BATCHES
from lathe.training.encoder.long_texts import Pieces
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.errors import EncoderError, TooLongError

SECONDS = 10.0
"""Timeout of every wait in these tests."""

INFO = EncoderInfo(DEFAULT_ENCODER, "f" * 32, 2, 256, {}, None, "cpu", 25, None)
WINDOW = WINDOW_BATCHES * INFO.batch_tokens
HELD = {"open_at_first": False}


class Double:
    """Fake worker process: encodes a text as its length, once it is open."""

    def __init__(self, problem=None, loads=True, open_at_first=True, info=INFO):
        self.problem = problem
        self.info = info
        self.loaded = threading.Event()
        self.turn = threading.Condition()
        self.open = open_at_first
        self.dead = False
        self.unread = deque()
        self.calls = []
        self.waited = []
        if loads:
            self.loaded.set()

    def set(self, **what):
        with self.turn:
            vars(self).update(what)
            self.turn.notify_all()

    def wait_ready(self):
        self.loaded.wait(SECONDS)
        if self.problem:
            raise self.problem
        return self.info

    def send(self, parts):
        if self.dead:
            raise BrokenPipeError
        self.unread.append(parts)
        self.calls.append([[part.work.texts[row] for row in part.rows] for part in parts])

    def receive(self, seconds):
        self.waited.append(seconds)
        with self.turn:
            if not self.turn.wait_for(lambda: self.open or self.dead, min(seconds, SECONDS)):
                raise TimeoutError
            if self.dead:
                raise EOFError
        parts = self.unread.popleft()
        return Reply([self.answer(part) for part in parts], [(2, 10, 12)], 0.01 * len(parts))

    def answer(self, part):
        texts = [part.work.texts[row] for row in part.rows]
        if "too long" in texts:
            return TooLongError("too long")
        vectors = np.array([[len(text), 1] for text in texts], np.float32)
        return PartResult(vectors, None, np.ones(len(texts), np.int64), np.zeros(len(texts), np.int64))

    def alive(self):
        return not self.dead

    def stop(self):
        self.loaded.set()
        self.set(dead=True)


class EncoderDouble:
    """Fake encoder: a text's vector is its length, and some texts fail."""

    dimensions, device, spec = 2, "cpu", DEFAULT_ENCODER

    def __init__(self):
        self.tokenized = []

    def route(self, name):
        return self

    def prompt(self, name):
        if name not in (None, "query"):
            raise EncoderError(f"no prompt {name}")
        return name

    def divide(self, texts, prompt, long_text, places, limit):
        for text, place in zip(texts, places, strict=True):
            if text == "too long" and long_text == "error":
                raise TooLongError(f"input {place} is too long")
        halves = [[text[:2], text[2:]] if long_text == "mean" and len(text) > 2 else [text] for text in texts]
        owners = [row for row, parts in enumerate(halves) for _ in parts]
        return Pieces([part for parts in halves for part in parts], np.array(owners), len(texts))

    def tokenize(self, texts, prompt, side):
        self.tokenized.append(texts)
        if "untokenizable" in texts:
            raise ValueError("a text nobody may read in a log")
        half = len(texts) // 2 + 1
        backwards = np.arange(len(texts))[::-1].copy()
        return [
            Batch(rows, {"texts": [texts[row] for row in rows]}, rows * 0 + 3, 4 * len(rows))
            for rows in (backwards[:half], backwards[half:])
            if len(rows)
        ]

    def forward(self, batch, normalize):
        if "crash" in batch.features["texts"]:
            raise RuntimeError("a text nobody may read in a log")
        if "contagious" in batch.features["texts"]:
            return torch.full((len(batch.rows), 2), torch.nan)
        return torch.tensor([[len(text), float(normalize)] for text in batch.features["texts"]])


class Starter:
    """Starts fake workers by plan, repeating the last plan, and keeps them in `made`."""

    def __init__(self, *plans):
        self.plans = list(plans) or [dict]
        self.made = []

    def __call__(self, spec):
        assert spec is DEFAULT_ENCODER
        plan = self.plans.pop(0) if len(self.plans) > 1 else self.plans[0]
        settings = plan()
        if "refuse" in settings:
            raise settings["refuse"]
        self.made.append(Double(**settings))
        return self.made[-1]


def ask(engine, *texts, **options):
    """Have the engine's queue admit texts, if the engine is ready."""
    return engine.queue.admit(list(texts), EncodeOptions(**options), engine.get_ready_info().max_length)


def lengths(work):
    """Return the text lengths that the fake worker encoded into the vectors."""
    return work.future.result(SECONDS).vectors[:, 0].tolist()


def error_of(work):
    """Return the code of a work's error."""
    error = work.future.exception(SECONDS)
    assert isinstance(error, ServiceError), error
    return error.code
