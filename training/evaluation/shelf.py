"""Methods fitted once and kept on disk, with what they do to the geometry."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from training.errors import EvaluationError
from training.evaluation.corpus import Corpus
from training.evaluation.methods import CONTROL, Method
from training.evaluation.worker import FittedMethod
from transforms import Chain, angular_stress, local_spearman, parse_steps, positional_stress, recall_at_k
from transforms.files import replace_synced
from transforms.statistics import unit_rows
from transforms.vectors import FloatArray


class MethodShelf:
    """Fitted methods on disk, each fitted once.

    Args:
        folder: one artifact for each method's key, with its intrinsic measures beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fitted(
        self, method: Method, output: str, corpus: Corpus | None, digest: str, on_progress: Callable[[str], None]
    ) -> tuple[FittedMethod, dict[str, float]]:
        """A method fitted, with what it does to the geometry of the sentences kept aside.

        Raises:
            EvaluationError: if it needs a corpus and there is none.
            TransformError: if it cannot be fitted on these vectors.
        """
        key = method.key_on(output, digest)
        if method.group == CONTROL:
            return FittedMethod(method.name, key), {}
        folder = self.folder / key
        if not folder.exists():
            on_progress(f"fitting {method.name}")
            (method.chain or fit(method, corpus)).save(folder)
        found = {} if corpus is None or method.size is None else self.measured(folder, method.size, corpus, output)
        cut = method.size if method.chain is not None else None
        return FittedMethod(method.name, key, folder, cut), found

    def measured(self, folder: Path, size: int, corpus: Corpus, output: str) -> dict[str, float]:
        """What a fitted method does to an encoder's sentences kept aside, measured once."""
        key = hashlib.sha256(f"{folder.name} {output} {corpus.digest}".encode()).hexdigest()[:32]
        kept = self.folder / f"{key}.json"
        if not kept.exists():
            measures = intrinsic(Chain.load(folder), size, corpus.heldout)
            replace_synced(kept, json.dumps(measures).encode())
        found: dict[str, float] = json.loads(kept.read_text())
        return found


def fit(method: Method, corpus: Corpus | None) -> Chain:
    """A method's map, from the corpus.

    Raises:
        EvaluationError: if there is no corpus.
        TransformError: if the steps do not fit it.
    """
    if corpus is None:
        raise EvaluationError(f"{method.name} is fitted on sentences: name some with --corpus")
    rows: Any = corpus.fit
    if method.sentences is not None:
        if method.sentences > len(rows):
            raise EvaluationError(f"{method.name}: the corpus has {len(rows):,} sentences to fit on")
        rows = rows[np.random.default_rng(method.draw).permutation(len(rows))[: method.sentences]]
    return Chain(parse_steps(method.steps), method.normalize).fit(rows)


def intrinsic(chain: Chain, size: int, heldout: FloatArray) -> dict[str, float]:
    """What a reduction keeps of the geometry: the measures of the GeoPres paper (its Table 1), and recall@10."""
    before = unit(heldout)
    after = np.asarray(chain.floats(heldout, size if chain.nested else None), np.float32)
    return {
        "local_spearman": local_spearman(before, after),
        "positional": positional_stress(before, after),
        "angular": angular_stress(before, after),
        "recall_at_10": recall_at_k(before, after),
    }


def unit(vectors: FloatArray) -> FloatArray:
    """Rows at unit length."""
    return unit_rows(torch.from_numpy(np.ascontiguousarray(vectors))).numpy()
