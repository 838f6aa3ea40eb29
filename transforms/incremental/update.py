"""Adding rows to a fitted chain whose earlier rows are only known by their moments."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from transforms.base import Transform
from transforms.chain import Chain, affine_parts
from transforms.errors import InputError
from transforms.incremental.propagation import approximate_normalized_moments, propagate_moments
from transforms.incremental.stages import Stages
from transforms.progress import Progress, no_progress
from transforms.statistics import Moments
from transforms.vectors import Vectors


@dataclass(frozen=True)
class ChainUpdate:
    """A chain after rows were added.

    Attributes:
        chain: fitted on all rows as far as moments allow.
        moments: of all rows, by refit stage.
        retained: positions of the steps that stayed as they were, with the reason.
    """

    chain: Chain
    moments: dict[int, Moments]
    retained: dict[int, str]


def update_chain(
    chain: Chain, stored: Mapping[int, Moments], rows: Vectors, on_progress: Progress = no_progress
) -> ChainUpdate:
    """Refit a copy of a chain on its earlier rows, given as moments, and on new rows.

    Steps are refitted in order from the merged moments of all rows. Up to the first normalization after a refitted step
    the result is that of a fit on all rows, up to rounding; after it, to first order in how much that step changed (see
    `approximate_normalized_moments`). Trained steps stay as they are. A quantizer is fitted again on the new rows
    alone, as the new chain transforms them.

    Args:
        chain: fitted; not changed.
        stored: moments of the earlier rows by refit stage, as `Stages.moments` returned them.
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
    refitted.metadata = {}
    moments = {}
    before = after = None  # moments of the earlier rows through the steps as they were, and as they are now
    for done, stage in enumerate(needed):
        original = stored[stage.number]
        if before is None or after is None:
            after = original
        else:
            after = approximate_normalized_moments(original, before, after)
        before = original
        on_progress(done / len(needed), "taking moments of the new rows")
        merged = Moments().merge(after).merge(stage.moments(refitted, rows))
        moments[stage.number] = merged
        for index in stage.steps:
            step = refitted[index]
            if index in stages.refitted and isinstance(step, Transform):
                on_progress(done / len(needed), f"fitting {step.kind}")
                step.fit(merged)
            for part in affine_parts(chain[index]) or []:
                before = propagate_moments(before, part)
            for part in affine_parts(step) or []:
                after, merged = propagate_moments(after, part), propagate_moments(merged, part)
    if refitted.quantizer is not None:
        refitted.fit_step(len(chain) - 1, rows)
    on_progress(1.0, "fitted")
    return ChainUpdate(refitted, moments, stages.retained)
