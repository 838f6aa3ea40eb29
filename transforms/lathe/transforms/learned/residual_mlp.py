"""Nonlinear bridge into another encoder's space: an orthogonal map and a small network that corrects it."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import (
    FitContext,
    Signature,
    TrainingConfig,
    Transform,
    require_between,
    require_training,
    require_whole,
)
from lathe.transforms.errors import InputError
from lathe.transforms.learned.descent import Batches, autograd_loss, checkpoint_for, one_thread_if_small, train
from lathe.transforms.learned.initialization import uniform_start
from lathe.transforms.linear import Procrustes
from lathe.transforms.statistics import Moments, PairedMoments, PairedRows, zero_where_zero
from lathe.transforms.vectors import Vectors

CONFIG = TrainingConfig(
    steps=600,
    batch=256,
    learning_rate=1e-3,
    weight_decay=0.01,
    warmup=0.05,
    heldout=2000,
    check_every=20,
    patience=5,
)
"""Default training config."""

MAX_HIDDEN = 8192
"""Maximum number of hidden units."""

NETWORK = ("hidden_weight", "hidden_bias", "output_weight")
"""Names of the buffers that are trained; the others are computed in closed form."""


class ResidualMLP(Transform):
    """Bridge x ↦ W(x − μ_x) + μ_y + V relu(U(x − μ_x) + u), `(n, d)` to `(n, k)`, fitted on vectors and their targets.

    The residual MLP of Drift-Adapter (arXiv 2509.23471) adds a network of one hidden layer to the identity. Here
    W(x − μ_x) + μ_y, the centred orthogonal map of `procrustes`, stands for the identity, so that dimensions may
    differ. The paper minimizes the squared error to the targets; this does well on vectors like those it is fitted on,
    and badly on queries, see docs/adapters.md. Here the network minimizes InfoNCE (van den Oord et al., arXiv
    1807.03748): an output should be nearer to its own target, by cosine, than to the other targets of its batch,
    −log exp(cos(y, t)/τ) / Σ_t' exp(cos(y, t')/τ).

    W stays as it is. V starts at zero, so that training starts at the orthogonal map, which is kept unless the network
    lowers the loss on a tenth of the pairs, which AdamW does not train on. Zero rows stay zero.

    Args:
        hidden: number of hidden units.
        temperature: τ.
        steps: maximum number of training steps; five evaluations without a lower held-out loss end it earlier.
        batch: number of pairs in a batch.
        learning_rate: peak learning rate.
        seed: of the held-out pairs, the batches and the initial weights.

    Attributes:
        weight: W, `(k, d)`.
        mean: μ_x, `(d,)`.
        target_mean: μ_y, `(k,)`.
        hidden_weight: U, `(hidden, d)`.
        hidden_bias: u, `(hidden,)`.
        output_weight: V, `(k, hidden)`.
    """

    kind = "residual_mlp"
    paired = True
    needs_paired_rows = True

    def __init__(
        self,
        hidden: int = 256,
        temperature: float = 0.05,
        steps: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.temperature = temperature
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.seed = seed
        self.weight: Tensor
        self.mean: Tensor
        self.target_mean: Tensor
        self.hidden_weight: Tensor
        self.hidden_bias: Tensor
        self.output_weight: Tensor
        for name in ("weight", "mean", "target_mean", *NETWORK):
            self.register_buffer(name, torch.empty(0))

    def check_parameters(self) -> None:
        """Raise `StepError` unless `hidden`, `temperature` and the training parameters are in range."""
        require_whole(self.kind, "hidden", self.hidden, at_least=1, at_most=MAX_HIDDEN)
        require_between(self.kind, "temperature", self.temperature, 1e-3, 10)
        require_training(self.kind, self.steps, self.batch, self.learning_rate, self.seed)

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature with the targets' dimensions, as `inputs` names them, else as fitted.

        The dimensions are None if neither is known. Zero-variance directions are reset to 0.
        """
        fitted = self.weight.shape[0] if self.fitted else None
        dimensions = fitted if inputs.target_dimensions is None else inputs.target_dimensions
        return replace(inputs, dimensions=dimensions, zero_variance_directions=0)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute W, μ_x and μ_y from the moments of the pairs, then train the network on their rows.

        Raises:
            InputError: if the vectors do not vary, for fewer than four pairs, or if training diverges before the first
                finite held-out loss.
        """
        assert isinstance(data, PairedRows)  # `fit` has seen to it
        device = self.device  # before the buffers are replaced by tensors on the CPU
        moments = PairedMoments.from_pairs(data.vectors, data.targets)
        covariance, d = moments.covariance(ddof=0), data.source_dimensions
        # In units of the spread, rows and corrections of any scale train alike.
        spread, target_spread = (
            float(block.trace() / len(block)) ** 0.5 for block in (covariance[:d, :d], covariance[d:, d:])
        )
        if spread**2 <= moments.rounding_variance():
            raise InputError(f"{self.kind} needs vectors that differ: there is nothing to learn from these")
        start = Procrustes(center=True).fit(moments)
        self.weight, self.mean, self.target_mean = start.weight, start.mean, start.target_mean
        weight, mean, target_mean = (buffer.to(device) for buffer in (start.weight, start.mean, start.target_mean))
        parameters = self._initial_parameters(d, len(target_mean), device)

        def loss_of(batch: Tensor) -> Tensor:
            """Return the mean InfoNCE of the batch's outputs among its targets, a scalar tensor."""
            centered = batch[:, :d] - mean
            hidden = functional.linear(centered / spread, parameters["hidden_weight"], parameters["hidden_bias"]).relu()
            correction = target_spread * functional.linear(hidden, parameters["output_weight"])
            outputs = functional.linear(centered, weight, target_mean) + correction
            cosines = functional.normalize(outputs, dim=1) @ functional.normalize(batch[:, d:], dim=1).T
            return functional.cross_entropy(cosines / self.temperature, torch.arange(len(batch), device=device))

        config = CONFIG.override(self.steps, self.batch, self.learning_rate)
        checkpoint = checkpoint_for(context, self.spec(), config, data, moments.mean)
        batches = Batches(data, config, self.seed, device)
        with one_thread_if_small(config.batch, device):
            self.training_log = train(
                self.kind,
                parameters,
                autograd_loss(parameters, loss_of),
                batches,
                config,
                context,
                checkpoint,
                evaluate_start=True,
            )
        self.hidden_weight = parameters["hidden_weight"].detach() / spread
        self.hidden_bias = parameters["hidden_bias"].detach()
        self.output_weight = parameters["output_weight"].detach() * target_spread

    def _initial_parameters(self, d: int, k: int, device: torch.device) -> dict[str, Tensor]:
        """Return the network's tensors by name, requiring gradients: V is zero, U and u those of `torch.nn.Linear`."""
        # The generator is on the CPU, so that a seed draws the same weights for every device.
        generator = torch.Generator().manual_seed(self.seed)
        start = {
            "hidden_weight": uniform_start((self.hidden, d), d, generator),
            "hidden_bias": uniform_start((self.hidden,), d, generator),
            "output_weight": torch.zeros(k, self.hidden),
        }
        return {name: tensor.to(device).requires_grad_() for name, tensor in start.items()}

    @property
    def learned_directions(self) -> int:
        """Number of output dimensions, k; 0 before the fit."""
        return self.weight.shape[0]

    def forward(self, x: Tensor) -> Tensor:
        """Return W(x − μ_x) + μ_y + V relu(U(x − μ_x) + u), `(n, d)` to `(n, k)`; zero rows of x become zero."""
        centered = x - self.mean
        hidden = functional.linear(centered, self.hidden_weight, self.hidden_bias).relu_()
        y = functional.linear(centered, self.weight, self.target_mean) + functional.linear(hidden, self.output_weight)
        return zero_where_zero(y, x)

    def fit_warnings(self) -> list[str]:
        """Return a warning, as a list of at most one, if training found nothing better than the orthogonal map."""
        if not self.output_weight.any():
            return [
                f"{self.kind} is the orthogonal map alone: no network was better on pairs held out from its training"
            ]
        return []
