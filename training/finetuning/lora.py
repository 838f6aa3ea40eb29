"""Low-rank adapters: a few small matrices are trained beside weights that stay, and merged into them at the end."""

import shutil
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file

from training.errors import JobError
from training.finetuning.extras import LoraSettings

WEIGHTS = "adapter.safetensors"
NAMED_LAYERS = 12


class Adapter:
    """The adapters of a sentence-transformers model, which are put into its transformer in place.

    Args:
        model: whose other weights are not trained from then on.
        settings: of the adapters.
        seed: of the numbers they begin with.

    Raises:
        JobError: without peft, for a static encoder, and for a model that has no such layers.
    """

    def __init__(self, model: Any, settings: LoraSettings, seed: int) -> None:
        if find_spec("peft") is None:
            raise JobError("training.lora needs peft: pip install 'lathe[lora]'")
        self.transformer = next(iter(model))
        if not hasattr(self.transformer, "auto_model"):
            raise JobError("a static encoder has no layers for training.lora; leave it out")
        from peft import LoraConfig, get_peft_model

        wanted = list(settings.target_modules) if settings.target_modules else None
        config = LoraConfig(
            r=settings.rank, lora_alpha=cast(Any, settings.alpha), lora_dropout=settings.dropout, target_modules=wanted
        )
        try:
            with warnings.catch_warnings(), torch.random.fork_rng():
                warnings.simplefilter("ignore")  # peft asks what transformers has renamed
                torch.manual_seed(seed)
                self.peft = get_peft_model(self.transformer.auto_model, config)
        except ValueError as error:
            known = ", ".join(dict.fromkeys(linear_layers(self.transformer.auto_model)))
            asked = f"no layers called {', '.join(wanted)}" if wanted else "an architecture peft knows no layers of"
            raise JobError(f"training.lora: the encoder has {asked}; target_modules may name {known}") from error
        for name, weights in model.named_parameters():
            weights.requires_grad = "lora_" in name

    @property
    def trained(self) -> int:
        """How many numbers are trained."""
        return sum(weights.numel() for weights in self.weights().values())

    def weights(self) -> dict[str, torch.Tensor]:
        """The adapters' own."""
        return {name: weights for name, weights in self.peft.state_dict().items() if "lora_" in name}

    def save(self, folder: Path) -> None:
        """Write the adapters alone, for a checkpoint."""
        save_file({name: weights.contiguous() for name, weights in self.weights().items()}, str(folder / WEIGHTS))

    def load(self, folder: Path) -> None:
        """Take the adapters of a checkpoint."""
        self.peft.load_state_dict(load_file(str(folder / WEIGHTS)), strict=False)

    def export(self, folder: Path, base: str) -> None:
        """Write the adapters as peft reads them, for the base model that is called so."""
        shutil.rmtree(folder, ignore_errors=True)
        self.peft.peft_config["default"].base_model_name_or_path = base
        self.peft.save_pretrained(str(folder), save_embedding_layers=False)  # they are as they were
        (folder / "README.md").unlink(missing_ok=True)  # a form that nobody filled in

    def merge(self) -> None:
        """Add what was learned to the weights and take the adapters out: a plain model is left."""
        self.peft.merge_and_unload(safe_merge=True)


def linear_layers(model: torch.nn.Module) -> Iterator[str]:
    """The last names of its linear layers."""
    names = [name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    yield from list(dict.fromkeys(names))[:NAMED_LAYERS]
