"""Samples of vectors for advice."""

import numpy as np
import pytest

from lathe.training.deciding.evidence import REDUCERS
from lathe.training.deciding.sample import MIN_HALVES, Sample
from lathe.training.measures import TextHalves
from lathe.training.sources.row_sample import RowSample


@pytest.fixture
def few_steps(monkeypatch):
    """Let nested GeoPres take 40 steps instead of a thousand for every size."""
    monkeypatch.setitem(REDUCERS, "nested GeoPres", "geopres:{k},nested=true,steps=40")


@pytest.fixture
def make_sample():
    """Return a function that samples vectors whose halves share a topic, plus a common direction of random strength."""

    def make(rows=600, width=32, common=0.0, noise=0.6, spectrum=0.0, seed=0, cut=True):
        random = np.random.default_rng(seed)
        direction = random.standard_normal(width)
        direction /= np.linalg.norm(direction)
        scales = np.arange(1, width + 1) ** -spectrum
        meaning = random.standard_normal((rows, width)) * scales

        def half(size):
            found = meaning[:size] + noise * random.standard_normal((size, width))
            found += common * np.sqrt(width) * (1 + random.standard_normal((size, 1))) * direction
            return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)

        whole, aside = half(rows), rows // 2
        count = aside if cut is True else cut
        halves = TextHalves(half(count), half(count)) if count >= MIN_HALVES else None
        row_sample = RowSample([str(row) for row in range(rows)], None, rows, 0, 0.0)
        return Sample(row_sample, whole[aside:], whole[:aside], count, halves, {"Latin": 1.0})

    return make
