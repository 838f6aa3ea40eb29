"""Rows added to a fitted chain, of whose own rows only moments are left."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass

from transforms.base.transform import Progress, no_progress
from transforms.chain.chain import Chain
from transforms.errors import InputError
from transforms.incremental.propagation import affine_parts, carried_over, mapped
from transforms.incremental.stages import Stages
from transforms.statistics.moments import Moments
from transforms.vectors import Vectors


@dataclass(frozen=True)
class Refit:
    """A chain after rows were added.

    Attributes:
        chain: fitted on all rows as far as moments allow; its `moments` are those of all rows.
        kept: the steps that stayed as they were, by their numbers, with the reason.
    """

    chain: Chain
    kept: dict[int, str]


def with_rows(chain: Chain, kept: Mapping[int, Moments], rows: Vectors, on_progress: Progress = no_progress) -> Refit:
    """A copy of a chain refitted on its own rows, given as moments, and on new ones.

    Steps are refitted in their order from moments of all rows, merged. Up to the first
    normalisation behind a refitted step that is what a fit on all rows gives, to rounding; behind
    it to first order in how far that step moved (`mapped.carried_over`). Steps that are trained
    stay as they are. A quantisation is fitted anew on the new rows, seen through the new chain.

    Args:
        chain: fitted; left as it is.
        kept: moments by stage, as `Stages.moments` gave them.
        rows: `(n, d)`, streamed.
        on_progress: told a fraction and a sentence.

    Raises:
        InputError: if no step can be refitted from moments, saying why, moments are missing, or the rows
            move the steps too far for them.
        StepError: for rows of another width.
    """
    chain.outline(rows.shape[1])
    stages = Stages.of(chain)
    needed = list(stages.needed())
    if not needed:
        reasons = "; ".join(f"{chain[index].kind}: {reason}" for index, reason in stages.kept.items())
        raise InputError(f"no step of this chain can be refitted from moments ({reasons or 'none learns anything'})")
    if missing := [stage.number for stage in needed if stage.number not in kept]:
        raise InputError(f"the moments of stage {missing[0]} of this chain are missing")
    refitted = copy.deepcopy(chain)
    refitted.metadata, refitted.moments = {}, {}
    before = after = None  # moments of the old rows through the steps as they were, and as they are now
    for done, stage in enumerate(needed):
        was = kept[stage.number]
        after = was if before is None or after is None else carried_over(was, before, after)
        before = was
        on_progress(done / len(needed), "taking moments of the new rows")
        merged = Moments().merge(after).merge(stage.moments(refitted, rows))
        refitted.moments[stage.number] = merged
        for index in stage.steps:
            if index in stages.refitted:
                on_progress(done / len(needed), f"fitting {chain[index].kind}")
                refitted[index].fit(merged)
            for part in affine_parts(chain[index]) or []:
                before = mapped(before, part)
            for part in affine_parts(refitted[index]) or []:
                after, merged = mapped(after, part), mapped(merged, part)
    if refitted.quantizer is not None:
        refitted.fit_step(len(chain) - 1, rows, no_progress, None, None)
    on_progress(1.0, "fitted")
    return Refit(refitted, stages.kept)
