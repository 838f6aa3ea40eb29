"""What to fit; it needs none of the libraries that the fit does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from training.sources.bad_shards import BadShards

DISTINCT_LEAST = 4
"""Different rows that a source must have: some to fit on, some to hold out."""


@dataclass(frozen=True)
class FitRequest:
    """What to fit, on what, and what the result must keep.

    Attributes:
        name: of the chain.
        steps: as JSON, in order.
        source: as `open_source` reads it.
        normalize: whether outputs are normalised.
        gates: certificate keys (dots go deeper) with what they must reach, or stay below.
        promote: make the new version live if its gates hold; None does so if no version is live.
        foreign: corpora to certify on besides, by name, as sources.
        seed: of the split into fitted and held-out rows.
        targets: a source of what each row should become, for steps that are fitted on pairs.
        keep_moments: save the moments of the fitted rows with the chain, so that rows can be added.
        add_to: the version, `name@version`, that the source's rows are added to; steps and normalize are its own.
        refit_of: the version that this is to take the place of; the certificate compares the two.
        because: why it is fitted, where nobody asked for it.
        bad_shards: `refuse` stops at a damaged file, `skip` leaves it out and says so.
    """

    name: str
    steps: Sequence[dict[str, Any]]
    source: str
    normalize: bool = True
    gates: Mapping[str, float] = field(default_factory=dict)
    promote: bool | None = None
    foreign: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    targets: str | None = None
    keep_moments: bool = False
    add_to: str | None = None
    refit_of: str | None = None
    because: str | None = None
    bad_shards: BadShards = "refuse"
