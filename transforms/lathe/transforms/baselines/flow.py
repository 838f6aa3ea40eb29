"""A normalizing flow: an invertible map of vectors to approximately independent standard normal entries."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import (
    FitContext,
    Map,
    Signature,
    TrainingConfig,
    Transform,
    apply,
    number,
    or_none,
    training_rules,
    whole_number,
)
from lathe.transforms.errors import InputError, NotFittedError, StepError
from lathe.transforms.learned.descent import (
    Batches,
    autograd_loss,
    compute_checked_mean,
    draw_uniform_weights,
    prepare_checkpoint,
    train,
)
from lathe.transforms.statistics import Moments, Spectrum, moments_of, zero_outputs_of_zero_rows
from lathe.transforms.vectors import Vectors

CONFIG = TrainingConfig(
    steps=600,
    batch=1024,
    learning_rate=3e-4,
    weight_decay=0.1,
    warmup=0.05,
    heldout=2000,
    check_every=20,
    patience=3,
)
"""Default training config. On 9,000 MiniLM vectors of Wikipedia sentences, held-out likelihood peaks at 200 steps."""

MAX_BLOCKS, MAX_HIDDEN = 64, 8192
"""Maximum number of blocks, and of hidden dimensions of a coupling."""

LOG_SCALE_LIMIT = 2.0
"""Maximum absolute log-scale of a coupling, so that the inverse stays accurate."""

MIN_DEVIATION = 1e-6
"""Minimum standard deviation in the initialization of actnorm, relative to the largest of the first batch."""


class Flow(Transform):
    """Normalizing flow x ↦ z, `(n, d)` to `(n, d)`: blocks of actnorm, a linear mixing and an affine coupling.

    *Glow* (Kingma and Dhariwal, 2018) with a d × d matrix in place of the 1×1 convolution, trained by maximum
    likelihood of the rows under z ~ N(0, I). Unit vectors and directions without variance have no density, so a little
    noise is added to every row in training. The number of dimensions stays; the inverse is exact, to 1e-4 in float32.

    A block computes, with a the first ⌊d/2⌋ entries and b the others:

        y = (x + offset)·exp(log_scale),   (a, b) = M y,   (s, t) = C relu(H a + h) + c,
        z = (a, b·exp(2 tanh(s/2)) + t)

    Args:
        blocks: number of blocks.
        hidden: dimensions of the couplings' hidden layer; None for ⌊d/2⌋.
        noise: standard deviation of the noise, relative to the root mean square of the entries' standard deviations.
        steps: maximum number of training steps; three evaluations on held-out rows without a higher likelihood end the
            training earlier.
        batch: rows of a batch.
        learning_rate: maximum learning rate.
        seed: seed of the initial weights, the batches and the noise.

    Attributes:
        training_log: steps and losses of the training; None after loading.
        offset: `(blocks, d)`.
        log_scale: `(blocks, d)`.
        mixing: M, `(blocks, d, d)`.
        hidden_weight: H, `(blocks, hidden, ⌊d/2⌋)`.
        hidden_bias: h, `(blocks, hidden)`.
        coupling_weight: C, `(blocks, 2⌈d/2⌉, hidden)`.
        coupling_bias: c, `(blocks, 2⌈d/2⌉)`.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Flow
        >>> rows = np.random.default_rng(0).normal(3, 2, size=(300, 4)).astype(np.float32)
        >>> step = Flow(blocks=2, steps=20).fit(rows)
        >>> step.transform(rows).shape, step.log_likelihood(rows).shape
        ((300, 4), (300,))
        >>> bool(np.allclose(step.inverse_transform(step.transform(rows)), rows, atol=1e-3))
        True
    """

    kind = "flow"
    inverse_kind = "exact"  # every block is invertible
    parameter_rules = {
        "blocks": whole_number(1, MAX_BLOCKS),
        "noise": number(0, 1),
        "hidden": or_none(whole_number(1, MAX_HIDDEN)),
        **training_rules(),
    }
    shapes = {
        "offset": ("blocks", "d"),
        "log_scale": ("blocks", "d"),
        "mixing": ("blocks", "d", "d"),
        "hidden_weight": ("blocks", "hidden", "half"),
        "hidden_bias": ("blocks", "hidden"),
        "coupling_weight": ("blocks", "outputs", "hidden"),
        "coupling_bias": ("blocks", "outputs"),
    }

    offset: Tensor
    log_scale: Tensor
    mixing: Tensor
    hidden_weight: Tensor
    hidden_bias: Tensor
    coupling_weight: Tensor
    coupling_bias: Tensor

    def __init__(
        self,
        blocks: int = 4,
        hidden: int | None = None,
        noise: float = 0.05,
        steps: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.blocks = blocks
        self.hidden = hidden
        self.noise = noise
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.seed = seed

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs unchanged, because a flow keeps the dimensions.

        Raises:
            StepError: for vectors of one dimension, which cannot be split in two halves.
        """
        if inputs.dimensions == 1:
            raise StepError("flow couples two parts of a vector: it needs vectors of at least 2 dimensions, not 1")
        return inputs

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Train the flow by maximum likelihood, and set its buffers and `training_log`. Moments or equal rows raise.

        The training starts from values that standardize the first batch.

        Raises:
            InputError: if `data` are moments, all rows are equal, the training diverges before the first finite
                held-out loss, or a direction has no variance and `noise` is 0.
        """
        if isinstance(data, Moments):
            raise InputError("flow is trained on vectors and cannot be fitted on moments")

        mean = compute_checked_mean(self.kind, data)
        # Without noise, the likelihood of a direction that has no variance grows without bound.
        if self.noise == 0:
            moments = moments_of(data)
            spectrum = Spectrum.from_matrix(moments.covariance(ddof=0), moments.rounding_variance())
            spectrum.require_rank("flow with noise=0", data.shape[1], data.shape[0])

        config = CONFIG.override(self.steps, self.batch, self.learning_rate)
        batches = Batches(data, config, self.seed, self.device)
        # The spread is measured while the noise of the batches is still 0.
        batches.noise = self.noise * float(batches.sample(0).std(0, correction=0).square().mean().sqrt())
        self._initialize(batches.sample(0))
        parameters = {name: getattr(self, name).clone().requires_grad_() for name in self.shapes}

        # During training the parameters are the buffers, so `log_densities` is differentiable in them.
        self._set_buffers(parameters)
        loss = autograd_loss(parameters, lambda batch: -self.log_densities(batch).mean())

        checkpoint = prepare_checkpoint(context, self.spec(), config, data, mean)
        self.training_log = train(self.kind, parameters, loss, batches, config, context, checkpoint)
        self._set_buffers({name: parameter.detach() for name, parameter in parameters.items()})

    def _set_buffers(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            setattr(self, name, tensor)

    def _initialize(self, batch: Tensor) -> None:
        """Set the buffers to the values with which training starts.

        They are random orthogonal mixings, couplings that change nothing, and actnorms that standardize the batch.
        """
        d, blocks = batch.shape[1], self.blocks
        half, second_half, hidden = d // 2, d - d // 2, self.hidden or max(1, d // 2)
        generator = torch.Generator().manual_seed(self.seed)
        rotations = torch.linalg.qr(torch.randn(blocks, d, d, generator=generator))[0].contiguous()
        tensors = {
            "offset": torch.zeros(blocks, d),
            "log_scale": torch.zeros(blocks, d),
            "mixing": rotations,
            "hidden_weight": draw_uniform_weights((blocks, hidden, half), half, generator),
            "hidden_bias": torch.zeros(blocks, hidden),
            # Zeros in a coupling's last layer make it the identity at the start, as in Glow (section 3.3).
            "coupling_weight": torch.zeros(blocks, 2 * second_half, hidden),
            "coupling_bias": torch.zeros(blocks, 2 * second_half),
        }
        self._set_buffers({name: tensor.to(batch.device) for name, tensor in tensors.items()})
        x = batch

        # Glow's start of actnorm (section 3.1): each block in turn standardizes what the blocks before it output.
        for block in range(blocks):
            deviations = x.std(0, correction=0)
            self.offset[block] = -x.mean(0)
            self.log_scale[block] = -deviations.clamp_(min=MIN_DEVIATION * float(deviations.max())).log()
            x, _ = self._apply_block(block, x)

    def _apply_block(self, block: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Apply one block of the flow to rows `(n, d)`, and return outputs and the log-scales of the coupling.

        Returns the outputs `(n, d)`, and the log-scales of the block's coupling `(n, ⌈d/2⌉)`.
        """
        y = (x + self.offset[block]) * self.log_scale[block].exp()
        y = functional.linear(y, self.mixing[block])
        first, second = _split_halves(y)
        # Only the second half is changed, by a function of the first: its Jacobian is triangular, and easy to invert.
        log_scale, shift = self.coupling(block, first)
        return torch.cat([first, second * log_scale.exp() + shift], -1), log_scale

    def coupling(self, block: int, first: Tensor) -> tuple[Tensor, Tensor]:
        """Compute how a block changes the second half of each row from the row's first half `(n, ⌊d/2⌋)`.

        Returns:
            The log-scale `(n, ⌈d/2⌉)` and the shift `(n, ⌈d/2⌉)`.
        """
        hidden = functional.linear(first, self.hidden_weight[block], self.hidden_bias[block]).relu()
        raw, shift = functional.linear(hidden, self.coupling_weight[block], self.coupling_bias[block]).chunk(2, dim=-1)
        return LOG_SCALE_LIMIT * torch.tanh(raw / LOG_SCALE_LIMIT), shift

    def log_densities(self, x: Tensor) -> Tensor:
        """Return the log density of each row under the flow, `(n, d)` to `(n,)`, differentiable in the buffers.

        It is log p(x) = log N(z; 0, I) + log|det ∂z/∂x|.
        """
        # One by one: with several threads torch factors the matrices of a batch at the same time, which MKL's LU is not
        # made for; it then gives wrong pivots or never ends (pytorch issues 141358 and 142815).
        mixing_volume = torch.stack([torch.linalg.slogdet(mixing)[1] for mixing in self.mixing]).sum()
        # Actnorm and mixing have the same Jacobian for every row; only a coupling's depends on the row.
        z, volume = x, self.log_scale.sum() + mixing_volume
        for block in range(self.blocks):
            z, log_scale = self._apply_block(block, z)
            volume = volume + log_scale.sum(-1)

        densities: Tensor = volume - 0.5 * z.square().sum(-1) - 0.5 * x.shape[-1] * math.log(2 * math.pi)
        return densities

    def log_likelihood(self, rows: Any) -> Any:
        """Return the natural log of the density that the flow gives each row, `(n, d)` to `(n,)`, without gradients.

        Returns:
            A tensor for a tensor, else a NumPy array.

        Raises:
            NotFittedError: before `fit`.
            InputError: for vectors of other dimensions than fitted on.
        """
        if not self.fitted:
            raise NotFittedError("call fit before log_likelihood")
        return apply(_LogDensity(self), rows)

    @property
    def learned_directions(self) -> int:
        """Number of output directions fitted from data: all d dimensions, or 0 before the fit."""
        return self.offset.shape[-1]

    def forward(self, x: Tensor) -> Tensor:
        """Map rows x to z by all blocks of the flow in order, `(n, d)` to `(n, d)`.

        Rows of x that are zero become zero.
        """
        z = x
        for block in range(self.blocks):
            z, _ = self._apply_block(block, z)
        return zero_outputs_of_zero_rows(z, x)

    def inverse(self) -> Map:
        """Return the exact inverse of the flow, from z to x, as a map that uses this flow's buffers."""
        return _InverseFlow(self)


def _split_halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return views of the first ⌊d/2⌋ columns and of the other ⌈d/2⌉ columns of rows `(n, d)`."""
    return x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]


class _InverseFlow(Map):
    """Inverse of a fitted `Flow`, z ↦ x, which inverts the blocks in reverse order.

    Mixings are inverted once, in float64.
    """

    kind = "inverse_flow"

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow
        inverses = torch.stack([torch.linalg.inv(mixing) for mixing in flow.mixing.double()])  # as in `log_densities`
        inverses = inverses.to(flow.mixing.dtype)
        self.unmixing: Tensor
        self.register_buffer("unmixing", inverses)

    def forward(self, x: Tensor) -> Tensor:
        for block in reversed(range(self.flow.blocks)):
            first, second = _split_halves(x)
            # A coupling leaves the first half unchanged, so its log-scale and shift can be computed from the outputs.
            log_scale, shift = self.flow.coupling(block, first)
            y = torch.cat([first, (second - shift) * (-log_scale).exp()], -1)
            y = functional.linear(y, self.unmixing[block])
            x = y * (-self.flow.log_scale[block]).exp() - self.flow.offset[block]

        return x


class _LogDensity(Map):
    """Log density of a fitted `Flow` as a map, `(n, d)` to `(n,)`, for use with `apply`."""

    kind = "log_density"

    def __init__(self, flow: Flow) -> None:
        super().__init__()
        self.flow = flow

    def forward(self, x: Tensor) -> Tensor:
        return self.flow.log_densities(x)
