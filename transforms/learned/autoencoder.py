"""An autoencoder's encoder as a reduction: the neural baseline of the GeoPres paper."""

import torch
from torch import Tensor
from torch.nn import functional

from transforms.base.signature import Outline
from transforms.base.training_log import paper_recipe
from transforms.base.transform import Inverse, Run, Transform
from transforms.base.validation import require_flag, require_training, require_whole
from transforms.errors import InputError
from transforms.learned.descent import Batches, by_autograd, checkpoint_of, descend, mean_of_varied
from transforms.linear.normalize import zero_where_zero
from transforms.statistics.moments import Moments
from transforms.vectors import Vectors


class Autoencoder(Transform):
    """relu(Ex + e), with E and e trained so that De' + d, of such outputs, comes back to x.

    The baseline of *Geometry-Preserving Dimensionality Reduction for Text Embeddings* (section
    4.3): one layer each way, the mean squared error of reconstruction, and the budget of its map
    (`recipe.PAPER`). Nothing in it asks for distances to be kept. At that learning rate outputs can
    die, and losses swing: the certificate counts the former, `record` has the latter.

    Args:
        dimensions: k.
        literal: whether a ReLU follows the decoder too, as the paper's words can be read; then
            negative entries never come back.
        steps: of training at most; None for the paper's ten epochs.
        batch: rows a step; None for the paper's 20,000.
        learning_rate: at its highest; None for the paper's.
        seed: of start and batches.

    Attributes:
        record: what happened in training; None after loading.
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
        require_whole(self.kind, "dimensions", dimensions, at_least=1)
        require_flag(self.kind, "literal", literal)
        require_training(self.kind, steps, batch, learning_rate, seed)
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

    def after(self, before: Outline) -> Outline:
        """The size reduced to.

        Raises:
            StepError: if that is not smaller than the input.
        """
        return before.reduced(self.kind, self.dimensions, whole=False)

    def learn(self, data: Moments | Vectors, run: Run) -> None:
        """Train encoder and decoder from where a linear layer of torch starts.

        Raises:
            InputError: for moments, rows that are all the same, or a training that diverges at once.
        """
        if isinstance(data, Moments):
            raise InputError("autoencoder is trained on vectors, and has no use for moments")
        mean = mean_of_varied(self.kind, data)
        recipe = paper_recipe(data.shape[0], self.steps, self.batch, self.learning_rate)
        parameters = self.start(data.shape[1])

        def loss_of(batch: Tensor) -> Tensor:
            codes = functional.linear(batch, parameters["weight"], parameters["bias"]).relu()
            back = functional.linear(codes, parameters["decoder_weight"], parameters["decoder_bias"])
            return (batch - (back.relu() if self.literal else back)).square().sum(1).mean()

        checkpoint = checkpoint_of(run, self.spec(), recipe, data, mean)
        batches = Batches(data, recipe, self.seed, self.device)
        grade = by_autograd(parameters, loss_of)
        self.record = descend(self.kind, parameters, grade, batches, recipe, run, checkpoint)
        for name, parameter in parameters.items():
            setattr(self, name, parameter.detach())

    def start(self, width: int) -> dict[str, Tensor]:
        """What linear layers of torch start from: uniform between ±1/√(their inputs)."""
        generator = torch.Generator().manual_seed(self.seed)
        k = self.dimensions
        shapes = {"weight": (k, width), "bias": (k,), "decoder_weight": (width, k), "decoder_bias": (width,)}
        inputs = {"weight": width, "bias": width, "decoder_weight": k, "decoder_bias": k}
        return {
            name: ((2 * torch.rand(shape, generator=generator) - 1) / inputs[name] ** 0.5)
            .to(self.device)
            .requires_grad_()
            for name, shape in shapes.items()
        }

    @property
    def learned_directions(self) -> int:
        """The rows of E."""
        return self.dimensions

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows, `(n, d)` to `(n, k)`, nothing below zero."""
        return zero_where_zero(functional.linear(x, self.weight, self.bias).relu(), x)

    @property
    def inverse_kind(self) -> Inverse:
        """Approximate: what the decoder makes of it."""
        return "approximate"

    def inverse(self) -> Transform:
        """The decoder."""
        return Decoder(self.decoder_weight, self.decoder_bias, self.literal)


class Decoder(Transform, registered=False):
    """The way back of an `Autoencoder`, `(n, k)` to `(n, d)`."""

    kind = "decoder"

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
