"""Contrastive alignment: a linear map into another encoder's space, trained so that searches find the right vector."""

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import FitContext, Transform, number, training_rules
from lathe.transforms.errors import InputError
from lathe.transforms.learned.descent import Batches
from lathe.transforms.learned.difference import make_config, train_difference
from lathe.transforms.linear import Procrustes
from lathe.transforms.linear.alignment import Alignment
from lathe.transforms.statistics import Moments, PairedMoments, PairedRows, unit_rows
from lathe.transforms.vectors import Vectors, as_numpy

MAX_HELDOUT = 500
"""Maximum number of pairs that are held out from training, which is a tenth of them at most."""

SPREAD_ROWS = 1000
"""Maximum number of targets whose cosines give the unit of the temperature."""

MIN_PAIRS = 60
"""Minimum number of pairs to fit an alignment."""

MAX_STEPS, MIN_STEPS = 300, 50
"""Maximum number of training steps of an alignment, and the number below which training is not tried."""

FULL_TRAINING_ENTRIES = 512 * 512
"""Number of entries of a map up to which it is trained for `MAX_STEPS`, which takes a second on a core. Larger maps get
fewer steps, so that training takes a few seconds at most."""


class ContrastiveAlignment(Alignment):
    """Affine map x ↦ W(x − μ_x) + μ_y that brings each vector nearer to its own target than to the other targets.

    W minimizes InfoNCE (van den Oord et al., arXiv 1807.03748), −log exp(⟨z, y⟩/τ) / Σ_y' exp(⟨z, y'⟩/τ), over the
    targets y' of a batch, where z is the mapped vector and all are L2-normalized. Squared errors are lowered most by
    what is common to all texts; a search needs what tells them apart.

    AdamW starts at the centred orthogonal map of `Procrustes`, and its weight decay draws W back to it. The W of the
    lowest loss on pairs that are held out from training is taken, which is that map if no other is better.

    Args:
        temperature: τ, in units of the standard deviation of the cosines between targets of different rows.
        steps: maximum number of training steps.
        batch: number of pairs in a batch.
        learning_rate: peak learning rate.
        weight_decay: of the difference to the orthogonal map, as AdamW applies it.
        seed: of the held-out pairs and the batches.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import ContrastiveAlignment
        >>> rows = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
        >>> targets = rows[:, :6] + 1
        >>> step = ContrastiveAlignment(steps=20, batch=64).fit(rows, targets=targets)
        >>> step.transform(rows).shape
        (300, 6)
    """

    kind = "contrastive_alignment"
    parameter_rules = {
        "temperature": number(1e-3, 10),
        **training_rules(),
        "weight_decay": number(0, 100),
    }

    def __init__(
        self,
        temperature: float = 0.25,
        steps: int = 300,
        batch: int = 256,
        learning_rate: float = 3e-4,
        weight_decay: float = 10.0,
        seed: int = 0,
    ) -> None:
        super().__init__(centered=True)
        self.temperature = temperature
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.seed = seed

    def join_pairs(self, data: Moments | Vectors, targets: Vectors | None) -> Moments | Vectors:
        """Return vectors `(n, d)` and targets `(n, k)` as `PairedRows`, because training reads rows and not moments.

        Raises:
            InputError: without targets, or for moments.
        """
        if targets is None or isinstance(data, Moments):
            raise InputError(f"{self.kind} is fitted on pairs: give vectors and the targets they should become")
        return PairedRows(data, targets)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Train the weight from the orthogonal map of `Procrustes`, and store it with the means. Too few pairs raise.

        Raises:
            InputError: for fewer than 4 pairs, or if vectors or targets do not differ.
        """
        assert isinstance(data, PairedRows)  # `join_pairs` has seen to it
        moments = PairedMoments.from_pairs(data.vectors, data.targets)
        if np.trace(moments.blocks(centered=True)[0]) / data.source_dimensions <= moments.rounding_variance():
            raise InputError(f"{self.kind} needs vectors that differ: there is nothing to learn from these")

        start = Procrustes(center=True).fit(moments).to(self.device)
        # Cosines of some encoders all lie near .8: in units of their spread, a temperature means the same for each.
        temperature = self.temperature * self._measure_spread(data.targets)
        config = make_config(self, MAX_HELDOUT)
        batches = Batches(data, config, self.seed, self.device)

        def loss_of(weight: Tensor, batch: Tensor) -> Tensor:
            # (b, d + k) to vectors (b, d) and targets (b, k)
            vectors, targets = batch[:, : data.source_dimensions], batch[:, data.source_dimensions :]
            mapped = (vectors - start.mean) @ weight.T + start.target_mean
            scores = functional.normalize(mapped, dim=1) @ functional.normalize(targets, dim=1).T / temperature
            # Row i of the scores (b, b) has its own target in column i.
            return functional.cross_entropy(scores, torch.arange(len(scores), device=scores.device))

        weight = train_difference(self, start.weight, loss_of, batches, config, context, data, moments.mean)
        self.set_pair_map(weight.cpu(), moments)

    def _measure_spread(self, targets: Vectors) -> float:
        """Return the standard deviation of cosines between up to `SPREAD_ROWS` targets. Targets of one direction raise.

        Raises:
            InputError: if it is 0 up to rounding.
        """
        count = targets.shape[0]
        chosen = np.sort(np.random.default_rng(self.seed).permutation(count)[:SPREAD_ROWS])
        unit = unit_rows(torch.from_numpy(as_numpy(targets[chosen]).astype(np.float64)))
        cosines = (unit @ unit.T)[~torch.eye(len(unit), dtype=torch.bool)]
        spread = float(cosines.std(correction=0)) if len(cosines) else 0.0
        if spread <= torch.finfo(torch.float32).eps:
            raise InputError(f"{self.kind} needs targets that differ: the {count} given point one way")
        return spread

    def fit_warnings(self) -> list[str]:
        """Return a list with one warning if no trained map was better than the orthogonal one, else an empty list."""
        losses = [] if self.training_log is None else self.training_log.heldout_losses
        if not losses or int(np.nan_to_num(losses, nan=np.inf).argmin()) > 0:
            return []
        return [f"{self.kind} is the orthogonal map of procrustes: on held-out pairs, no trained map was better"]


def make_alignment(dimensions: int, target_dimensions: int) -> Transform:
    """Return the unfitted transform from vectors of one encoder to vectors of another.

    It is trained, or orthogonal if training would take too long. The recall on held-out pairs does not choose among
    maps: it is highest for the map of the smallest squared error, with which searches find least
    (research/adapters.md).
    """
    steps = min(MAX_STEPS, MAX_STEPS * FULL_TRAINING_ENTRIES // (dimensions * target_dimensions))
    return Procrustes(center=True) if steps < MIN_STEPS else ContrastiveAlignment(steps=steps)
