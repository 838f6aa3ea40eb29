"""Division of a chain into refit stages: which steps can be refitted from moments, and where these are taken.

x ─ mc ─ abtt ─ normalize ─ pca ─ geopres ─ …
└ stage 0 ┘                 └ stage 1 ┘

Moments can be propagated exactly through an affine map, but not through a normalization. So a chain is divided into
refit stages: stage 0 begins with the rows as they come, every other stage with normalized rows, and every step of a
stage learns from the moments at the beginning of its stage, propagated through the steps before it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from lathe.transforms.base import Map, Transform, view_through
from lathe.transforms.chain import Chain, affine_parts
from lathe.transforms.codes import ProductCoding, Quantizer
from lathe.transforms.linear import Normalize
from lathe.transforms.statistics import Moments, moments_of, unit_moments
from lathe.transforms.vectors import Vectors


@dataclass
class Stage:
    """Run of steps with only affine maps between them, which are refitted from the same moments.

    Attributes:
        number: 0 for the stage of the rows as they come.
        position: position in the chain of the step before which the stage begins.
        steps: positions of the steps of the stage.
        moved: whether an affine map was added, so that rows differ from those at the beginning of the stage.
    """

    number: int
    position: int
    steps: list[int] = field(default_factory=list)
    moved: bool = False

    @property
    def unit(self) -> bool:
        """Whether the stage begins with normalized rows."""
        return self.number > 0

    def take_moments(self, chain: Chain, rows: Vectors) -> Moments:
        """Compute the moments of rows `(n, d)` as they are at the beginning of this stage. Rows pass the steps before
        it, and are normalized except for stage 0. They are streamed.
        """
        if self.position:
            # `unit_moments` normalizes in float64; the chain itself would do so in float32.
            rows = view_through(rows, Chain(chain.transforms[: self.position], normalize=False))
        return unit_moments(rows) if self.unit else moments_of(rows)


@dataclass
class Stages:
    """Fitted chain divided into refit stages.

    Attributes:
        stages: in order, up to a step that is not affine.
        refitted: positions of the steps that can be refitted.
        retained: positions of the steps that must stay as they are, with the reason.
    """

    stages: list[Stage]
    refitted: set[int]
    retained: dict[int, str]

    @classmethod
    def of(cls, chain: Chain) -> "Stages":
        """Divide a fitted chain into refit stages, and find the steps that can be refitted. A refit stage is a group of
        consecutive steps that are fitted again from the same moments.

        A quantizer that learns from moments is the last step of a stage. Of those that learn from rows, `int8` and
        `binary` are in no stage, because the new rows alone suffice for their ranges; codebooks are retained.

        Steps that learn from data and cannot be refitted are listed in `retained`, with the reason.
        """
        divided = cls([Stage(0, 0)], set(), {})
        unreachable = None
        for index, step in enumerate(chain.transforms):
            assert isinstance(step, Transform)
            if isinstance(step, Quantizer):
                if step.learns_from == "rows" and not isinstance(step, ProductCoding):
                    break
                # A chain normalizes once, before its quantizer.
                if unreachable is None and chain.normalize:
                    divided._begin_stage(index)

            # Such a step learns from the moments of unit rows, so its stage has to begin before it.
            if unreachable is None and step.normalizes_rows:
                divided._begin_stage(index)

            reason = unreachable or _reason_to_retain(step, divided.stages[-1])
            if reason is not None and step.learns_from != "nothing":
                divided.retained[index] = reason
            elif step.learns_from != "nothing":
                divided.refitted.add(index)

            if unreachable is None and isinstance(step, Quantizer):
                divided.stages[-1].steps.append(index)
            elif unreachable is None and not divided._add_step(index, step):
                # The moments of the rows are unknown from here on, and so are those of all later stages.
                unreachable = f"it comes after {step.kind}, which is not an affine map"

        divided._retain_axis_choosing_steps(chain)
        return divided

    def needed(self) -> Iterator[Stage]:
        """Yield the stages whose moments a refit needs. They reach from the first that has a step to refit to the last
        that has one.

        Those in between are yielded too. Yields nothing if no step can be refitted.
        """
        with_steps = [stage.number for stage in self.stages if self.refitted & set(stage.steps)]
        if with_steps:
            # A stage in between refits nothing, but the change of the steps before it passes through its moments.
            yield from self.stages[with_steps[0] : with_steps[-1] + 1]

    def take_moments(self, chain: Chain, rows: Vectors) -> dict[int, Moments]:
        """Compute the moments to store of the rows the chain was fitted on, as a dict from stage number to moments."""
        return {stage.number: stage.take_moments(chain, rows) for stage in self.needed()}

    def _begin_stage(self, position: int) -> None:
        """Append a stage that begins before the step at `position`. Nothing is done if the last stage begins with unit
        rows and has no affine map yet.
        """
        last = self.stages[-1]
        if not last.unit or last.moved:
            self.stages.append(Stage(last.number + 1, position))

    def _add_step(self, index: int, step: Map) -> bool:
        """Append a step to the last stage if the step is affine, and return whether it is.

        A final normalization does not count; a new stage begins after it.
        """
        parts = affine_parts(step)
        if parts is None:
            return False

        last = self.stages[-1]
        last.steps.append(index)
        last.moved = last.moved or bool(parts)

        if isinstance(step.primitives()[-1], Normalize):
            self._begin_stage(index + 1)

        return True

    def _retain_axis_choosing_steps(self, chain: Chain) -> None:
        """Move steps that choose their output axes from `refitted` to `retained` if a later step is retained.

        The later step was fitted on those axes, and a refit would choose other axes.
        """
        trained = None
        # From the end, because a step that is retained here also needs the axes chosen before it.
        for index in reversed(range(len(chain))):
            step = chain.transforms[index]
            if trained is not None and index in self.refitted and isinstance(step, Transform) and step.chooses_axes:
                self.refitted.remove(index)
                self.retained[index] = f"{trained} was fitted on its axes"
            if index in self.retained:
                trained = step.kind


def _reason_to_retain(step: Transform, stage: Stage) -> str | None:
    """Return why a step cannot be refitted from the moments at the beginning of its stage, or None if it can be."""
    if step.learns_from == "rows":
        return "it is fitted on pairs" if step.paired or step.takes_pairs else "it is trained on rows"
    if step.learns_from == "unit moments" and (stage.moved or not stage.unit):
        return "it learns from unit rows, and no step just before it normalizes them"
    if step.weighted_by_queries:
        return "it is weighted by queries, whose moments are not stored"
    if stage.moved and step.needs_higher_moments:
        return "it needs fourth moments, which cannot be propagated through the step before it"

    return None
