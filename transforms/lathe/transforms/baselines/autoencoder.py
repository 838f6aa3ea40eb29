"""Dimensionality reduction by the encoder of a one-layer autoencoder: the neural baseline of the GeoPres paper."""

import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import FLAG, FitContext, Map, Signature, Transform, training_rules, whole_number
from lathe.transforms.errors import InputError
from lathe.transforms.learned.descent import (
    Batches,
    autograd_loss,
    build_paper_config,
    compute_checked_mean,
    draw_uniform_weights,
    prepare_checkpoint,
    train,
)
from lathe.transforms.statistics import Moments, zero_outputs_of_zero_rows
from lathe.transforms.vectors import Vectors


class Autoencoder(Transform):
    """One-layer ReLU encoder z = relu(Ex + e), trained together with a decoder Dz + d that reconstructs x.

    The baseline of *Geometry-Preserving Dimensionality Reduction for Text Embeddings* (section
    4.3): one layer each way, the squared error of reconstruction, and the training config of the paper's linear map
    (`build_paper_config.PAPER`). The loss does not preserve distances. At that learning rate outputs can
    become constant, and losses swing: the certificate counts constant outputs, `training_log` has the losses.

    Args:
        dimensions: k.
        literal: whether a ReLU follows the decoder too, as the paper can be read; then reconstructions have no
            negative entries.
        steps: maximum number of training steps; None for the paper's ten epochs.
        batch: rows of a batch; None for the paper's 20,000.
        learning_rate: maximum learning rate; None for the paper's.
        seed: seed of the initial weights and of the batches.

    Attributes:
        training_log: steps and losses of the training; None after loading.
        weight: E, `(k, d)`.
        bias: e, `(k,)`.
        decoder_weight: D, `(d, k)`.
        decoder_bias: d, `(d,)`.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Autoencoder
        >>> rows = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
        >>> step = Autoencoder(2, steps=20, batch=64).fit(rows)
        >>> encoded = step.transform(rows)
        >>> encoded.shape, bool((encoded >= 0).all()), step.inverse_transform(encoded).shape
        ((300, 2), True, (300, 6))
    """

    kind = "autoencoder"
    inverse_kind = "approximate"  # the decoder reconstructs inputs with an error
    parameter_rules = {"dimensions": whole_number(1), "literal": FLAG, **training_rules()}
    shapes = {
        "weight": ("k", "d"),
        "bias": ("k",),
        "decoder_weight": ("d", "k"),
        "decoder_bias": ("d",),
    }

    weight: Tensor
    bias: Tensor
    decoder_weight: Tensor
    decoder_bias: Tensor

    def __init__(
        self,
        dimensions: int,
        literal: bool = False,
        steps: int | None = None,
        batch: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.dimensions = dimensions
        self.literal = literal
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.seed = seed

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the signature (dimensions, rank) of the inputs, reduced to `dimensions` dimensions.

        Raises:
            StepError: if the inputs are known to have `dimensions` dimensions or fewer.
        """
        return inputs.reduce(self.kind, self.dimensions, allow_same=False)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Train encoder and decoder to reconstruct vectors with a small squared error. Moments or equal rows raise.

        The weights and biases, which start as in `torch.nn.Linear`, and `training_log` are set.

        Raises:
            InputError: if `data` are moments, all rows are equal, or the training diverges before the first finite
                held-out loss.
        """
        if isinstance(data, Moments):
            raise InputError("autoencoder is trained on vectors and cannot be fitted on moments")

        mean = compute_checked_mean(self.kind, data)
        config = build_paper_config(data.shape[0], self.steps, self.batch, self.learning_rate)
        # Trained outside of the buffers, which are set once the training has ended.
        parameters = self._draw_initial_parameters(data.shape[1])

        def loss_of(batch: Tensor) -> Tensor:
            codes = functional.linear(batch, parameters["weight"], parameters["bias"]).relu()
            decoded = functional.linear(codes, parameters["decoder_weight"], parameters["decoder_bias"])
            return (batch - (decoded.relu() if self.literal else decoded)).square().sum(1).mean()

        checkpoint = prepare_checkpoint(context, self.spec(), config, data, mean)
        batches = Batches(data, config, self.seed, self.device)
        loss = autograd_loss(parameters, loss_of)
        self.training_log = train(self.kind, parameters, loss, batches, config, context, checkpoint)

        for name, parameter in parameters.items():
            setattr(self, name, parameter.detach())

    def _draw_initial_parameters(self, d: int) -> dict[str, Tensor]:
        """Return the weights and biases of both layers at the start of the training, by name.

        They are drawn from U(−1/√fan_in, 1/√fan_in) and require gradients.
        """
        # The generator is on the CPU, so that a seed draws the same weights for every device.
        generator = torch.Generator().manual_seed(self.seed)
        k = self.dimensions
        shapes = {"weight": (k, d), "bias": (k,), "decoder_weight": (d, k), "decoder_bias": (d,)}
        fan_in = {"weight": d, "bias": d, "decoder_weight": k, "decoder_bias": k}

        return {
            # `requires_grad_` comes last: a tensor that `.to` copied from it would be no leaf, which AdamW refuses.
            name: draw_uniform_weights(shape, fan_in[name], generator).to(self.device).requires_grad_()
            for name, shape in shapes.items()
        }

    @property
    def learned_directions(self) -> int:
        """Number of output directions fitted from data: `dimensions`, the rows of E."""
        return self.dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(Ex + e) for rows x, `(n, d)` to `(n, k)`.

        Rows of x that are zero become zero, whatever the bias.
        """
        return zero_outputs_of_zero_rows(functional.linear(x, self.weight, self.bias).relu(), x)

    def inverse(self) -> Map:
        """Return the trained decoder as a map, `(n, k)` to `(n, d)`, which reconstructs inputs approximately."""
        return _AutoencoderDecoder(self.decoder_weight, self.decoder_bias, self.literal)


class _AutoencoderDecoder(Map):
    """Decoder of a fitted `Autoencoder`: z ↦ Dz + d, or relu(Dz + d) if `literal`, `(n, k)` to `(n, d)`."""

    kind = "autoencoder_decoder"
    weight: Tensor
    bias: Tensor

    def __init__(self, weight: Tensor, bias: Tensor, literal: bool) -> None:
        super().__init__(weight=weight, bias=bias)
        self.literal = literal

    def forward(self, x: Tensor) -> Tensor:
        y = functional.linear(x, self.weight, self.bias)
        return y.relu() if self.literal else y
