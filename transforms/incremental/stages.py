"""Which steps of a chain can be refitted from moments, and from the moments of what.

x ─ mc ─ abtt ─ normalise ─ pca ─ geopres ─ …
└ stage 0 ┘                └ stage 1 ┘

An affine map takes moments along exactly, a normalisation does not. So a chain falls into stages:
stage 0 begins with the rows as they come, each other with rows at unit length, and whatever is
learned within a stage is learned from the moments of its beginning.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from transforms.base.transform import Transform
from transforms.base.transformed_view import behind
from transforms.chain.chain import Chain
from transforms.incremental.propagation import affine_parts
from transforms.learned.geopres import GeoPres
from transforms.linear.debias import R1, R2, unit_moments
from transforms.linear.normalize import Normalize
from transforms.linear.pca import PCA
from transforms.linear.whitening import Whitening
from transforms.statistics.moments import Moments, moments_of
from transforms.vectors import Vectors


@dataclass
class Stage:
    """Steps with nothing but affine maps between them.

    Attributes:
        number: 0 for the rows as they come.
        position: the step that it begins before.
        steps: the numbers of its steps.
        moved: whether a step so far maps the rows anywhere.
    """

    number: int
    position: int
    steps: list[int] = field(default_factory=list)
    moved: bool = False

    @property
    def unit(self) -> bool:
        """Whether it begins with rows at unit length."""
        return self.number > 0

    def moments(self, chain: Chain, rows: Vectors) -> Moments:
        """The moments of its beginning, for rows `(n, d)` at the chain's, streamed."""
        if self.position:
            rows = behind(rows, Chain(chain.transforms[: self.position], normalize=False))
        return unit_moments(rows) if self.unit else moments_of(rows)


@dataclass
class Stages:
    """A fitted chain in stages.

    Attributes:
        stages: in order, up to a step that is no affine map.
        refitted: the numbers of the steps that can be refitted.
        kept: the numbers of those that must stay as they are, with the reason.
    """

    stages: list[Stage]
    refitted: set[int]
    kept: dict[int, str]

    @classmethod
    def of(cls, chain: Chain) -> "Stages":
        """Those of a fitted chain; a quantisation belongs to none."""
        found = cls([Stage(0, 0)], set(), {})
        beyond = None
        for index, step in enumerate(chain.float_steps):
            if beyond is None and isinstance(step, R1 | R2):  # R2 of a row is R2 of it at unit length
                found.begin(index)
            reason = beyond or reason_to_keep(step, found.stages[-1])
            if reason is not None and step.learns_from != "nothing":
                found.kept[index] = reason
            elif step.learns_from != "nothing":
                found.refitted.add(index)
            if beyond is None and not found.take(index, step):
                beyond = f"it comes after {step.kind}, which is no affine map"
        found.keep_axes(chain)
        return found

    def begin(self, position: int) -> None:
        """Begin a stage of unit rows before a step, unless the rows are as the last began with them."""
        last = self.stages[-1]
        if not last.unit or last.moved:
            self.stages.append(Stage(last.number + 1, position))

    def take(self, index: int, step: Transform) -> bool:
        """Put a step into the last stage; false if no moments go through it."""
        parts = affine_parts(step)
        if parts is None:
            return False
        last = self.stages[-1]
        last.steps.append(index)
        last.moved = last.moved or bool(parts)
        if isinstance(step.primitives()[-1], Normalize):
            self.begin(index + 1)
        return True

    def keep_axes(self, chain: Chain) -> None:
        """Keep steps that choose axes where a step was trained on their outputs: other axes mean nothing to it."""
        trained = None
        for index in reversed(range(len(chain.float_steps))):
            step = chain.transforms[index]
            if trained is not None and index in self.refitted and chooses_axes(step):
                self.refitted.remove(index)
                self.kept[index] = f"{trained} was fitted on its axes"
            if index in self.kept:
                trained = step.kind

    def needed(self) -> Iterator[Stage]:
        """The stages whose moments a refit takes: from the first with a step to refit to the last."""
        with_steps = [stage.number for stage in self.stages if self.refitted & set(stage.steps)]
        if with_steps:
            yield from self.stages[with_steps[0] : with_steps[-1] + 1]

    def moments(self, chain: Chain, rows: Vectors) -> dict[int, Moments]:
        """What to keep of the rows `(n, d)` a chain was fitted on: moments by stage."""
        return {stage.number: stage.moments(chain, rows) for stage in self.needed()}


def reason_to_keep(step: Transform, stage: Stage) -> str | None:
    """Why the moments of a stage's beginning do not say what a step would learn; None if they do."""
    if step.learns_from == "rows":
        return "it is fitted on pairs" if step.paired else "it is trained on rows"
    if step.learns_from == "unit moments" and (stage.moved or not stage.unit):
        return "it learns from unit rows, and nothing brings them to unit length just before it"
    if stage.moved and isinstance(step, Whitening) and isinstance(step.shrinkage, str):
        return f"shrinkage={step.shrinkage} takes fourth moments, which do not go through the step before it"
    return None


def chooses_axes(step: Transform) -> bool:
    """Whether its outputs are coordinates along directions it found."""
    return isinstance(step, PCA | GeoPres) or (isinstance(step, Whitening) and step.form == "pca")
