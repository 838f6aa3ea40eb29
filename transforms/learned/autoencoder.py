"""An autoencoder's encoder as a reduction: the neural baseline of the GeoPres paper."""

import torch
from torch import Tensor
from torch.nn import functional

from transforms.base import (
    FitContext,
    Inverse,
    Map,
    Signature,
    Transform,
    require_flag,
    require_training,
    require_whole,
)
from transforms.errors import InputError
from transforms.learned.descent import Batches, autograd_loss, checkpoint_for, mean_of_varied, train
from transforms.learned.initialization import uniform_start
from transforms.learned.paper_config import paper_config
from transforms.statistics import Moments, zero_where_zero
from transforms.vectors import Vectors


class Autoencoder(Transform):
    """relu(Ex + e), with E and e trained so that De' + d, of such outputs, comes back to x.

    The baseline of *Geometry-Preserving Dimensionality Reduction for Text Embeddings* (section
    4.3): one layer each way, the mean squared error of reconstruction, and the training config of its map
    (`paper_config.PAPER`). Nothing in it asks for distances to be kept. At that learning rate outputs can
    become constant, and losses swing: the certificate counts constant outputs, `training_log` has the losses.

    Args:
        dimensions: k.
        literal: whether a ReLU follows the decoder too, as the paper's words can be read; then
            negative entries never come back.
        steps: maximum number of training steps; None for the paper's ten epochs.
        batch: rows of a batch; None for the paper's 20,000.
        learning_rate: the highest; None for the paper's.
        seed: of start and batches.

    Attributes:
        training_log: what happened in training; None after loading.
        weight: E, `(k, d)`.
        bias: e, `(k,)`.
        decoder_weight: D, `(d, k)`.
        decoder_bias: d, `(d,)`.
    """

    kind = "autoencoder"

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
        self.weight: Tensor
        self.bias: Tensor
        self.decoder_weight: Tensor
        self.decoder_bias: Tensor
        for name in ("weight", "bias", "decoder_weight", "decoder_bias"):
            self.register_buffer(name, torch.empty(0))

    def check_parameters(self) -> None:
        """Raise `StepError` for a parameter out of range."""
        require_whole(self.kind, "dimensions", self.dimensions, at_least=1)
        require_flag(self.kind, "literal", self.literal)
        require_training(self.kind, self.steps, self.batch, self.learning_rate, self.seed)

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the reduced signature.

        Raises:
            StepError: if the inputs do not have more dimensions.
        """
        return inputs.reduce(self.kind, self.dimensions, allow_same=False)

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Train encoder and decoder from the random start of a linear layer.

        Raises:
            InputError: for moments, rows that are all the same, or a training that diverges at once.
        """
        if isinstance(data, Moments):
            raise InputError("autoencoder is trained on vectors and cannot be fitted on moments")
        mean = mean_of_varied(self.kind, data)
        config = paper_config(data.shape[0], self.steps, self.batch, self.learning_rate)
        parameters = self._initial_parameters(data.shape[1])

        def loss_of(batch: Tensor) -> Tensor:
            codes = functional.linear(batch, parameters["weight"], parameters["bias"]).relu()
            back = functional.linear(codes, parameters["decoder_weight"], parameters["decoder_bias"])
            return (batch - (back.relu() if self.literal else back)).square().sum(1).mean()

        checkpoint = checkpoint_for(context, self.spec(), config, data, mean)
        batches = Batches(data, config, self.seed, self.device)
        loss = autograd_loss(parameters, loss_of)
        self.training_log = train(self.kind, parameters, loss, batches, config, context, checkpoint)
        for name, parameter in parameters.items():
            setattr(self, name, parameter.detach())

    def _initial_parameters(self, d: int) -> dict[str, Tensor]:
        """Draw the weights and biases of both layers as torch draws those of linear layers."""
        generator = torch.Generator().manual_seed(self.seed)
        k = self.dimensions
        shapes = {"weight": (k, d), "bias": (k,), "decoder_weight": (d, k), "decoder_bias": (d,)}
        inputs = {"weight": d, "bias": d, "decoder_weight": k, "decoder_bias": k}
        return {
            name: uniform_start(shape, inputs[name], generator).to(self.device).requires_grad_()
            for name, shape in shapes.items()
        }

    @property
    def learned_directions(self) -> int:
        """Number of rows of E."""
        return self.dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows, `(n, d)` to `(n, k)`, with no entry below zero."""
        return zero_where_zero(functional.linear(x, self.weight, self.bias).relu(), x)

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: the decoder's reconstruction."""
        return "approximate"

    def inverse(self) -> Map:
        """Return the decoder."""
        return AutoencoderDecoder(self.decoder_weight, self.decoder_bias, self.literal)


class AutoencoderDecoder(Map):
    """Decode the outputs of an `Autoencoder`, `(n, k)` to `(n, d)`."""

    kind = "autoencoder_decoder"

    def __init__(self, weight: Tensor, bias: Tensor, literal: bool) -> None:
        super().__init__()
        self.weight: Tensor
        self.bias: Tensor
        self.register_buffer("weight", weight)
        self.register_buffer("bias", bias)
        self.literal = literal

    def forward(self, x: Tensor) -> Tensor:
        """Decode rows."""
        y = functional.linear(x, self.weight, self.bias)
        return y.relu() if self.literal else y
