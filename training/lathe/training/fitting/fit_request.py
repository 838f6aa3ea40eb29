"""Request of a fit; imports none of the libraries that the fit needs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lathe.training.sources.bad_shards import BadShards

CODES = "codes"
"""Kind of the step that a budget of bytes adds."""

MIN_DISTINCT_ROWS = 4
"""Minimum number of distinct rows of a source, so that some can be fitted on and some held out."""


@dataclass(frozen=True)
class FitRequest:
    """Description of a fit: steps, source and gates.

    Attributes:
        name: name of the chain.
        steps: JSON specs of the steps, in order.
        source: the source, as `open_source` reads it.
        normalize: whether outputs are normalized.
        gates: minimum value by certificate key, where dots separate nested keys; a maximum for some keys, see
            `lathe.training.fitting.gates`.
        promote: whether the new version becomes live if its gates hold; None promotes it only if no version is live.
        out_of_domain: further out-of-domain corpora to certify on: sources by name.
        seed: seed of the split into fitted and held-out rows.
        targets: source of the target of each row, for steps fitted on pairs.
        keep_moments: whether the moments of the fitted rows are stored with the chain, so that rows can be added later.
        add_to: version `name@version` that the source's rows are added to; its steps and normalize apply.
        bytes: budget of a vector in bytes: codes of that size follow the steps, and their weighting and codebooks are
            searched; None for no such codes.
        queries: source of queries that will search the vectors, to weight codes by; None weights by the rows.
        pairs: file of queries and their relevant documents that steps learn from, as `read_pairs` reads it; a part of
            them certifies the chain if there are no test pairs.
        test_pairs: such a file of other queries, to certify the chain with.
        personal_data: whether queries, pairs and test pairs hold personal data: then nothing of their texts and vectors
            outlives the fit, see `lathe.training.fitting.personal_data`.
        prompt_name: name of the encoder's prompt for the source's texts; None for that of documents, if it has one.
        serve_dimensions: whether requests for the chain's dimensions get it once it is live.
        bad_shards: `refuse` raises at the first damaged file, `skip` leaves such files out and reports them.
    """

    name: str
    steps: Sequence[dict[str, Any]]
    source: str
    normalize: bool = True
    gates: Mapping[str, float] = field(default_factory=dict)
    promote: bool | None = None
    out_of_domain: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    targets: str | None = None
    keep_moments: bool = False
    add_to: str | None = None
    bad_shards: BadShards = "refuse"
    bytes: int | None = None
    queries: str | None = None
    pairs: str | None = None
    test_pairs: str | None = None
    personal_data: bool = False
    serve_dimensions: bool = False
    prompt_name: str | None = None

    @property
    def all_steps(self) -> list[dict[str, Any]]:
        """Specs of the steps, and of codes at the end if there is a budget of bytes."""
        return [*self.steps, *([] if self.bytes is None else [{"kind": CODES, "bytes": self.bytes}])]
