"""Adding rows to a fitted chain whose earlier rows are known only by stored moments."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from lathe.transforms.base import Transform
from lathe.transforms.chain import Chain, affine_parts
from lathe.transforms.errors import InputError
from lathe.transforms.incremental.propagation import approximate_normalized_moments, propagate_moments
from lathe.transforms.incremental.stages import Stages
from lathe.transforms.progress import Progress, no_progress
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import Vectors


@dataclass(frozen=True)
class ChainUpdate:
    """Result of adding rows to a chain.

    Attributes:
        chain: refitted on all rows as far as moments allow.
        moments: of all rows, by number of the refit stage.
        retained: positions of the steps that were not refitted, with the reason.
    """

    chain: Chain
    moments: dict[int, Moments]
    retained: dict[int, str]


def update_chain(
    chain: Chain, stored: Mapping[int, Moments], rows: Vectors, on_progress: Progress = no_progress
) -> ChainUpdate:
    """Refit a copy of a chain on new rows and on the stored moments of its earlier rows. Returns the new chain, the
    merged moments, and the steps that could not be refitted, with reasons.

    Steps are refitted in order. Up to the first normalization after a refitted step the result equals a fit on all
    rows, up to rounding; after it, to first order in how much that step changed (see `approximate_normalized_moments`).
    Trained steps are not refitted. A quantizer that learns from rows is fitted on the new rows alone, as the refitted
    chain transforms them.

    Args:
        chain: fitted; not changed.
        stored: moments of the earlier rows by number of the refit stage, as `Stages.take_moments` returned them.
        rows: new rows `(n, d)`, streamed.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        InputError: if no step can be refitted from moments, moments are missing, or the rows change the steps too much.
        StepError: for rows of other dimensions.
    """
    chain.signature(rows.shape[1])
    stages = Stages.of(chain)
    needed = list(stages.needed())
    if not needed:
        reasons = "; ".join(f"{chain[index].kind}: {reason}" for index, reason in stages.retained.items())
        raise InputError(f"no step of this chain can be refitted from moments ({reasons or 'none learns anything'})")
    if missing := [stage.number for stage in needed if stage.number not in stored]:
        raise InputError(f"the moments of stage {missing[0]} of this chain are missing")

    refitted = copy.deepcopy(chain)
    # The certificate and provenance in the metadata describe the chain before the refit.
    refitted.metadata = {}
    moments = {}
    before = after = None  # moments of the earlier rows after the original steps, and after the refitted ones

    for done, stage in enumerate(needed):
        original = stored[stage.number]
        if before is None or after is None:
            # No step before the first needed stage is refitted, so the old rows enter it as they did.
            after = original
        else:
            after = approximate_normalized_moments(original, before, after)

        before = original
        on_progress(done / len(needed), "taking moments of the new rows")
        # `merge` works in place: starting from empty moments copies, and leaves the stored ones unchanged.
        # The new rows pass the refitted steps, so every stage waits for the one before it.
        merged = Moments().merge(after).merge(stage.take_moments(refitted, rows))
        moments[stage.number] = merged

        for index in stage.steps:
            step = refitted[index]
            if index in stages.refitted and isinstance(step, Transform):
                on_progress(done / len(needed), f"fitting {step.kind}")
                step.fit(merged)

            # The moments follow the steps of both chains, so that the next stage can start from their difference.
            for part in affine_parts(chain[index]) or []:
                before = propagate_moments(before, part)

            for part in affine_parts(step) or []:
                after, merged = propagate_moments(after, part), propagate_moments(merged, part)

    last = len(chain) - 1
    if refitted.quantizer is not None and refitted.quantizer.learns_from == "rows" and last not in stages.retained:
        # Int8 codes need the ranges of entries, which moments do not hold.
        refitted.fit_step(last, rows)

    on_progress(1.0, "fitted")
    return ChainUpdate(refitted, moments, stages.retained)
