"""Low-rank adapters: small trained matrices next to frozen weights, merged into the weights after the training."""

import shutil
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file

from lathe.training.errors import JobError
from lathe.training.finetuning.extras import LoraSettings

WEIGHTS = "adapter.safetensors"
"""File name of the adapters' weights in a checkpoint."""
NAMED_LAYERS = 12
"""Maximum number of layer names that an error message lists."""


class LoraAdapter:
    """Low-rank adapters of a sentence-transformers model.

    Creating one changes the model in place: adapters are inserted into the model's transformer, and all other weights
    of the model are frozen.

    Args:
        model: sentence-transformers model that is changed.
        settings: settings of the adapters.
        seed: seed of the adapters' initial weights.

    Raises:
        JobError: if peft is not installed, the encoder is static, or the model has no layers of the given names.
    """

    def __init__(self, model: Any, settings: LoraSettings, seed: int) -> None:
        if find_spec("peft") is None:
            raise JobError("training.lora needs peft: pip install 'lathe-training[lora]'")

        self.transformer = next(iter(model))
        if not hasattr(self.transformer, "auto_model"):
            raise JobError("a static encoder has no layers for training.lora; leave training.lora out")

        from peft import LoraConfig, get_peft_model

        named_layers = list(settings.target_modules) if settings.target_modules else None
        config = LoraConfig(
            r=settings.rank,
            lora_alpha=cast(Any, settings.alpha),
            lora_dropout=settings.dropout,
            target_modules=named_layers,
        )
        try:
            with warnings.catch_warnings(), torch.random.fork_rng():
                warnings.simplefilter("ignore")  # peft uses names that transformers has deprecated
                torch.manual_seed(seed)
                self.peft = get_peft_model(self.transformer.auto_model, config)
        except ValueError as error:
            modules = self.transformer.auto_model.named_modules()
            linear = [name.rpartition(".")[2] for name, module in modules if isinstance(module, torch.nn.Linear)]
            known = ", ".join(list(dict.fromkeys(linear))[:NAMED_LAYERS])
            problem = (
                f"no layers called {', '.join(named_layers)}"
                if named_layers
                else "an architecture for which peft has no default layers"
            )
            raise JobError(f"training.lora: the encoder has {problem}; target_modules may name {known}") from error

        for name, weights in model.named_parameters():
            weights.requires_grad = "lora_" in name

    def weights(self) -> dict[str, torch.Tensor]:
        """Return the adapters' tensors by name."""
        return {name: weights for name, weights in self.peft.state_dict().items() if "lora_" in name}

    def save(self, folder: Path) -> None:
        """Write the adapters' tensors to the file `WEIGHTS` in a checkpoint folder, without the rest of the model."""
        save_file({name: weights.contiguous() for name, weights in self.weights().items()}, str(folder / WEIGHTS))

    def load(self, folder: Path) -> None:
        """Load the adapters' tensors from a checkpoint folder, in place. The other weights stay as they are."""
        self.peft.load_state_dict(load_file(str(folder / WEIGHTS)), strict=False)

    def export(self, folder: Path, base: str) -> None:
        """Write the adapters to a folder in the format of peft, without a README.md. An existing folder is replaced.

        Args:
            folder: folder to write; an existing folder is deleted first.
            base: name or path of the base model, which is also set in this object's peft configuration.

        Raises:
            OSError: if the folder cannot be deleted or written.
        """
        if folder.exists():
            shutil.rmtree(folder)
        self.peft.peft_config["default"].base_model_name_or_path = base
        self.peft.save_pretrained(str(folder), save_embedding_layers=False)  # they were not trained
        (folder / "README.md").unlink(missing_ok=True)  # an empty template of a model card

    def merge(self) -> None:
        """Add the adapters to the model's weights and remove them, in place.

        A plain sentence-transformers model remains.

        Raises:
            ValueError: if a merged weight is not finite.
        """
        self.peft.merge_and_unload(safe_merge=True)
