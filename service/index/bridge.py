"""Queries of the encoder an index is moving to, while it still holds the vectors of the old one.

A re-embedding encodes some of the index's texts anew first. Their old and new vectors are the
pairs an alignment is fitted on; until the move is done it takes new queries to the old space.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.index.reducer import Vectors
from service.index.spec import IndexSpec, spec_of
from transforms.chain import Chain
from transforms.files import replace_synced
from transforms.linear import LowRankAffine
from transforms.quality import cross_recall_at_k
from transforms.vectors import FloatArray

FOLDER = "alignment"
PAIRS_LEAST = 60
HELDOUT_SHARE = 5
"""Every fifth pair tells how good the alignment is."""


@dataclass(frozen=True)
class Bridge:
    """A fitted alignment from a coming encoder to the space an index serves.

    Attributes:
        spec: what the index is moving to.
        chain: takes that encoder's vectors to the present originals' space.
        pairs: it was fitted on.
        recall_at_10: on pairs kept aside, how many of the ten texts nearest by the old encoder a
            new query finds; None if there were too few.
    """

    spec: IndexSpec
    chain: Chain
    pairs: int
    recall_at_10: float | None

    def __call__(self, vectors: Vectors) -> Vectors:
        """Vectors `(n, d)` of the coming encoder in the present space."""
        crossed: Vectors = self.chain.floats(vectors)
        return crossed

    def describe(self) -> dict[str, Any]:
        """What answers say of it."""
        return {
            "encoder": self.spec.encoder,
            "raw_space_id": self.spec.raw_space_id,
            "pairs": self.pairs,
            "recall_at_10": self.recall_at_10,
        }


def fit_bridge(new: FloatArray, old: FloatArray, spec: IndexSpec, folder: Path) -> None:
    """Fit an alignment on pairs `(n, d)`, `(n, k)` and write it into the folder of the coming generation.

    With too few pairs nothing is written: such an alignment would mislead.
    """
    aside = slice(None, None, HELDOUT_SHARE)
    kept = [row for row in range(len(new)) if row % HELDOUT_SHARE]
    if len(kept) < PAIRS_LEAST:
        return
    chain = Chain([LowRankAffine()]).fit(new[kept], targets=old[kept])
    crossed = chain.transform(new[aside])
    recall = cross_recall_at_k(crossed, old[aside], 10) if len(crossed) > 10 else None
    chain.save(folder / FOLDER)
    replace_synced(
        folder / f"{FOLDER}.json",
        json.dumps({"spec": spec.json(), "pairs": len(kept), "recall_at_10": recall}).encode(),
    )


def load_bridge(folder: Path) -> Bridge | None:
    """The alignment in the folder of a coming generation; None if there is none yet.

    Raises:
        ArtifactError: if it was damaged.
    """
    try:
        content = json.loads((folder / f"{FOLDER}.json").read_bytes())
    except FileNotFoundError:
        return None
    chain = Chain.load(folder / FOLDER).fold()
    return Bridge(spec_of(content["spec"]), chain, content["pairs"], content["recall_at_10"])
