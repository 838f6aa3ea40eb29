"""Move of an index to another encoder, and the alignment for its queries while the index holds the old vectors.

A re-embedding first encodes some of the index's texts with the new encoder. Their old and new vectors are the pairs
that the alignment is fitted on; until the move is done it maps new queries to the old space.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import IndexSpec, parse_spec
from lathe.transforms.chain import Chain
from lathe.transforms.errors import TransformError
from lathe.transforms.files import read_json_file, replace_synced
from lathe.transforms.learned.contrastive_alignment import MIN_PAIRS, make_alignment
from lathe.transforms.quality import cross_recall_at_k
from lathe.transforms.vectors import FloatArray

log = logging.getLogger(__name__)

ALIGNMENT_FOLDER = "alignment"
"""Name of the folder of the alignment in that of a generation; also the stem of its JSON file."""
HELDOUT_SHARE = 5
"""Interval of held-out pairs: every fifth one is used to measure the recall."""


@dataclass(frozen=True)
class Bridge:
    """Fitted map from vectors of a new encoder to the embedding space of the vectors that an index still holds.

    Attributes:
        spec: settings that the index is moving to.
        chain: maps vectors of the new encoder to the space of the current originals.
        pairs: number of pairs that the alignment was fitted on.
        recall_at_10: recall@10 of the mapped queries against the old encoder's, on held-out pairs; None if there
            were too few.
        kind: kind of the alignment; None if it was saved without.
    """

    spec: IndexSpec
    chain: Chain
    pairs: int
    recall_at_10: float | None
    kind: str | None = None

    def __call__(self, vectors: Vectors) -> Vectors:
        """Map vectors `(n, d)` of the new encoder to `(n, k)`, to be compared with the index's original vectors."""
        mapped: Vectors = self.chain.floats(vectors)
        return mapped

    def describe(self) -> dict[str, Any]:
        """Describe the map as a dict: new encoder, space id of the encoder's vectors, kind, pairs and recall@10."""
        return {
            "encoder": self.spec.encoder,
            "raw_space_id": self.spec.raw_space_id,
            "kind": self.kind,
            "pairs": self.pairs,
            "recall_at_10": self.recall_at_10,
        }


@dataclass(frozen=True)
class Move:
    """Re-embedding in progress, by which an index moves to another encoder.

    Attributes:
        folder: folder of the next generation.
        text_field: metadata field that must hold the text of each item that is written meanwhile.
        bridge: alignment for queries of the new encoder; None until it is fitted.
    """

    folder: Path
    text_field: str
    bridge: Bridge | None = None


def fit_bridge(new: FloatArray, old: FloatArray, spec: IndexSpec, folder: Path) -> None:
    """Fit a linear map from a new encoder's vectors to the old encoder's, and save it in `folder`.

    Queries by the new encoder can search the old vectors through it while an index is re-embedded. Every fifth pair is
    held out to measure the recall. If fewer than 60 pairs remain, nothing is saved, because the map would mislead. The
    same goes for vectors from which no map can be learned, such as vectors of one text repeated.

    Args:
        new: vectors of texts by the new encoder `(n, d)`.
        old: vectors of the same texts by the old encoder `(n, k)`.
        spec: settings that the index is moving to; saved next to the map, to know later what it was fitted for.
        folder: folder of the new generation.
    """
    # Every fifth pair is held out, so that the recall is of texts that the map was not fitted on.
    held_out = slice(None, None, HELDOUT_SHARE)
    fitted_on = [row for row in range(len(new)) if row % HELDOUT_SHARE]
    if len(fitted_on) < MIN_PAIRS:
        return
    step = make_alignment(new.shape[1], old.shape[1])
    try:
        chain = Chain([step]).fit(new[fitted_on], targets=old[fitted_on])
    except TransformError as error:  # the index moves all the same
        log.warning("queries by %s cannot search the old vectors meanwhile: %s", spec.encoder, error)
        return
    recall = cross_recall_at_k(chain.transform(new[held_out]), old[held_out], 10)
    chain.save(folder / ALIGNMENT_FOLDER)
    content = {
        "spec": spec.to_json(),
        "pairs": len(fitted_on),
        "recall_at_10": recall,
        "kind": step.kind,
    }
    replace_synced(folder / f"{ALIGNMENT_FOLDER}.json", json.dumps(content).encode())


def load_bridge(folder: Path) -> Bridge | None:
    """Load the map that `fit_bridge` saved in a folder, and return it, or None if there is none yet.

    Raises:
        ArtifactError: if the files of the map are damaged.
        ValueError, KeyError: if the JSON file next to them is.
    """
    try:
        content = read_json_file(folder / f"{ALIGNMENT_FOLDER}.json")
    except FileNotFoundError:
        return None
    chain = Chain.load(folder / ALIGNMENT_FOLDER).fold()
    return Bridge(parse_spec(content["spec"]), chain, content["pairs"], content["recall_at_10"], content.get("kind"))
