"""Cache of fitted methods on disk, with the intrinsic measures of reductions."""

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from lathe.training.errors import EvaluationError
from lathe.training.evaluation.methods import CONTROL
from lathe.transforms import Chain, angular_stress, local_spearman, positional_stress, recall_at_k
from lathe.transforms.files import parse_json_object, read_plain_file, replace_synced
from lathe.transforms.statistics import unit_rows
from lathe.transforms.vectors import FloatArray
from research.fitted_methods.corpus import Corpus
from research.fitted_methods.methods import FittableMethod


class MethodCache:
    """Cache of fitted methods on disk, by method, encoder and corpus.

    Args:
        folder: folder with one artifact for each fitted method, and JSON files of the intrinsic measures.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load_or_fit(
        self, method: FittableMethod, output: str, corpus: Corpus | None, on_progress: Callable[[str], None]
    ) -> tuple[FittableMethod, dict[str, float]]:
        """Load a fitted method from the cache folder, or fit its chain on the corpus and save it there.

        A method with a fitted chain is only stored; raw vectors need neither. The measures are stored too; they are
        empty for methods that do not reduce, and without a corpus.

        Args:
            method: the method, with its key.
            output: hash of the encoder's output.
            corpus: vectors of the sentences, or None.
            on_progress: called with a message before a fit.

        Returns:
            The method with the folder of its chain, and measures of how a reduction preserves the geometry, by name.

        Raises:
            EvaluationError: if the method needs a corpus and there is none, or too few sentences.
            TransformError: if the method cannot be fitted on these vectors.
        """
        if method.group == CONTROL:
            return method, {}

        folder = self.folder / method.key
        if not folder.exists():
            on_progress(f"fitting {method.name}")
            chain = method.chain
            if chain is None:
                if corpus is None:
                    raise EvaluationError(f"{method.name} is fitted on sentences: name some with --corpus")
                chain = method.fit(corpus.fit)
            chain.save(folder)

        measures: dict[str, float] = {}
        if corpus is not None and method.size is not None:
            measures = self._load_or_measure(folder, method.size, corpus, output)

        cut = method.size if method.chain is not None else None
        return replace(method, folder=folder, dimensions=cut), measures

    def _load_or_measure(self, folder: Path, size: int, corpus: Corpus, output: str) -> dict[str, float]:
        # The measures depend on the held-out rows too, so their key has the corpus besides the method.
        key = hashlib.sha256(f"{folder.name} {output} {corpus.digest}".encode()).hexdigest()[:32]
        path = self.folder / f"{key}.json"
        with suppress(OSError, ValueError):  # missing or damaged: they are measured again
            return parse_json_object(read_plain_file(path))
        measures = _measure_reduction(Chain.load(folder), size, corpus.heldout)
        replace_synced(path, json.dumps(measures).encode())
        return measures


def _measure_reduction(chain: Chain, size: int, heldout: FloatArray) -> dict[str, float]:
    """Measure how a reduction to `size` dimensions preserves the geometry of held-out rows.

    The measures, by name, are local Spearman correlation, positional and angular stress (the GeoPres paper, Table 1),
    and recall@10.
    """
    before = normalize_rows(heldout)
    after = np.asarray(chain.floats(heldout, size if chain.nested else None), np.float32)
    return {
        "local_spearman": local_spearman(before, after),
        "positional": positional_stress(before, after),
        "angular": angular_stress(before, after),
        "recall_at_10": recall_at_k(before, after),
    }


def normalize_rows(vectors: FloatArray) -> FloatArray:
    """Return the rows scaled to L2 norm 1. Zero rows stay zero."""
    return unit_rows(torch.from_numpy(np.ascontiguousarray(vectors))).numpy()
