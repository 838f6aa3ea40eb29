"""Generation of an embedded index that one search uses from beginning to end."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from threading import Lock

import numpy as np

from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.payloads import PayloadCache
from lathe.service.index.protocol import Hit
from lathe.service.index.query import Query
from lathe.service.index.spec import IndexSpec

TRIES = 3
"""Maximum number of times a search is run if it meets rows of items that are being replaced."""


@dataclass(frozen=True)
class GenerationServing:
    """One generation of an index, to be searched.

    Attributes:
        generation: the generation.
        payloads: ids and metadata of the items by label.
        changing: lock that a write holds while record and rows change.
        translate_closing_errors: opens a block in which errors of a closed index are raised as such.
    """

    generation: Generation
    payloads: PayloadCache
    changing: Lock
    translate_closing_errors: Callable[[], AbstractContextManager[None]]

    @property
    def spec(self) -> IndexSpec:
        """Settings of the generation."""
        return self.generation.spec

    def search(self, query: Query) -> list[list[Hit]]:
        """Return the k nearest items to each vector of the query, best first, with id, score and metadata.

        The search is repeated up to twice if items it found were replaced meanwhile; items that are still missing are
        left out.

        Raises:
            ServiceError: if the filter takes too much work, or the index is deleted or closed meanwhile.
        """
        for _ in range(TRIES):
            with self.translate_closing_errors():
                labels, scores = self.generation.search(query)
                there = np.unique(labels[labels >= 0]).tolist()
                found = self.payloads.get(there)
            if len(found) == len(there):
                break
            with self.changing:  # rows of items that were replaced or deleted just now: wait until that is through
                pass
        return [
            [
                {"id": found[label][0], "score": score, "metadata": found[label][1]}
                for label, score in zip(ours, theirs, strict=True)
                if label in found
            ]
            for ours, theirs in zip(labels.tolist(), scores.tolist(), strict=True)
        ]
