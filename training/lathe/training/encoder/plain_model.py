"""Loading of the most common text encoders by transformers alone, without sentence-transformers.

A server needs one forward pass of a BERT, a mean and a norm. Importing sentence-transformers for that takes a second,
most of it for scikit-learn and what its trainers use. `open_plain_model` therefore loads folders whose files ask for
nothing else. The vectors and the fingerprint are bit for bit those of sentence-transformers, which loads all others.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lathe.training.encoder.chat_template import TEMPLATE_FILES
from lathe.training.encoder.devices import best_device
from lathe.training.encoder.spec import EncoderSpec

MODEL_TYPES = ("bert", "roberta", "xlm-roberta")
"""Architectures of transformers whose input, beside a tokenizer's output, sentence-transformers does not change."""

MODULES = ("Transformer", "Pooling", "Normalize")
"""Classes of the modules of a plain model, in order; the last may be missing."""

UNUSUAL_FILES = (*TEMPLATE_FILES, "adapter_config.json", "processor_config.json", "preprocessor_config.json")
"""Files that change what a model reads or computes."""

ALLOWED_SETTINGS: dict[str, dict[str, list[Any] | None]] = {
    "model": {
        "__version__": None,
        "model_type": ["SentenceTransformer"],
        "prompts": None,
        "default_prompt_name": None,
        "similarity_fn_name": None,
        "truncate_dim": [None],
    },
    "transformer": {
        "max_seq_length": [None, *range(3, 1 << 16)],
        "do_lower_case": [False],
        "transformer_task": ["feature-extraction"],
        "modality_config": [{"text": {"method": "forward", "method_output_name": "last_hidden_state"}}],
        "module_output_name": ["token_embeddings"],
    },
    "pooling": {
        "embedding_dimension": None,
        "word_embedding_dimension": None,
        "pooling_mode": ["mean", "cls"],
        "include_prompt": [True],
        "pooling_mode_mean_tokens": [True, False],
        "pooling_mode_cls_token": [True, False],
        "pooling_mode_max_tokens": [False],
        "pooling_mode_mean_sqrt_len_tokens": [False],
        "pooling_mode_weightedmean_tokens": [False],
        "pooling_mode_lasttoken": [False],
    },
    "normalize": {"module_input_name": ["sentence_embedding"], "module_output_name": ["sentence_embedding"]},
}
"""Settings that a plain model may have, by the module that has them, and the values of each; None stands for any."""


class Transformer(torch.nn.Module):
    """Model of transformers with its tokenizer, which adds `token_embeddings` to its input."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        super().__init__()
        self.model = model  # the name is in the keys of the weights, and so in the fingerprint
        self.tokenizer = tokenizer

    @property
    def auto_model(self) -> Any:
        """Model of transformers."""
        return self.model

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Run the model, and add its `token_embeddings` `(b, t, d)` to the features."""
        features["token_embeddings"] = self.model(**features, return_dict=True).last_hidden_state
        return features


class Pooling(torch.nn.Module):
    """Mean or first vector of each text's tokens. The operations are those of sentence-transformers, in their order."""

    include_prompt = True

    def __init__(self, dimensions: int, pooling_mode: str) -> None:
        super().__init__()
        self.embedding_dimension = dimensions
        self.pooling_mode = pooling_mode

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Add `sentence_embedding` `(b, d)` to the features, of padded texts or of texts in one row."""
        pool = self._pool_row if "cu_seq_lens_q" in features else self._pool_padded
        features["sentence_embedding"] = pool(features["token_embeddings"], features)
        return features

    def _pool_padded(self, tokens: torch.Tensor, features: dict[str, Any]) -> torch.Tensor:
        """Pool the tokens `(b, t, d)` of padded texts."""
        mask: torch.Tensor = features["attention_mask"]
        if self.pooling_mode == "cls":  # the first that is no padding, which may be on the left
            first = mask.to(torch.int).argmax(dim=1)
            return tokens[torch.arange(len(tokens), device=tokens.device), first]
        weights = mask.unsqueeze(-1).to(tokens.dtype)
        means: torch.Tensor = (tokens * weights).sum(dim=1) / torch.clamp(weights.sum(dim=1), min=1e-9)
        return means

    def _pool_row(self, tokens: torch.Tensor, features: dict[str, Any]) -> torch.Tensor:
        """Pool the tokens `(1, t, d)` of texts in one row, whose bounds are in `cu_seq_lens_q`."""
        rows = tokens.squeeze(0)
        bounds: torch.Tensor = features["cu_seq_lens_q"]
        if self.pooling_mode == "cls":
            return rows[bounds[:-1]]
        lengths = bounds.diff()
        owners = torch.repeat_interleave(torch.arange(len(lengths), device=rows.device), lengths)
        sums = rows.new_zeros(len(lengths), rows.shape[1]).index_add(0, owners, rows)
        return sums / lengths.unsqueeze(1).to(sums.dtype)


class Normalize(torch.nn.Module):
    """Division of each text's vector by its norm."""

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        """Normalize `sentence_embedding` in the features."""
        features["sentence_embedding"] = torch.nn.functional.normalize(features["sentence_embedding"], dim=-1)
        return features


class PlainModel(torch.nn.Sequential):
    """Model with the interface of a `SentenceTransformer`, as far as `Encoder` uses it to encode."""

    truncate_dim: int | None = None

    def __init__(self, *modules: torch.nn.Module, prompts: dict[str, Any], default_prompt_name: str | None) -> None:
        super().__init__(*modules)
        self.prompts = prompts
        self.default_prompt_name = default_prompt_name

    @property
    def tokenizer(self) -> Any:
        """Tokenizer of transformers."""
        return self[0].tokenizer

    @property
    def config(self) -> Any:
        """Config of the model of transformers."""
        first: Any = self[0]
        return first.auto_model.config

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.parameters()).device

    @property
    def max_seq_length(self) -> int:
        """Number of tokens that the model reads of a text."""
        length: int = self.tokenizer.model_max_length
        return length

    @max_seq_length.setter
    def max_seq_length(self, length: int) -> None:
        self.tokenizer.model_max_length = length

    def get_embedding_dimension(self) -> int:
        """Return the dimensions of the vectors."""
        pooling: Any = self[1]
        return int(pooling.embedding_dimension)

    def preprocess(self, texts: list[str], prompt: str | None = None) -> dict[str, Any]:
        """Return the input of the model for texts with a prompt before each, padded to the longest."""
        texts = [(prompt or "") + text for text in texts]
        return dict(self.tokenizer(texts, padding=True, truncation="longest_first", return_tensors="pt"))


@dataclass(frozen=True)
class PlainSettings:
    """What the files of a plain model say.

    Attributes:
        dimensions: dimensions of the vectors.
        pooling_mode: `mean` or `cls`.
        normalized: whether the model normalizes its vectors.
        max_length: number of tokens that the model reads of a text; None for as many as it has positions for.
        prompts: prompts by name.
        default_prompt_name: name of the prompt for texts that name none; None for none.
    """

    dimensions: int
    pooling_mode: str
    normalized: bool
    max_length: int | None
    prompts: dict[str, str]
    default_prompt_name: str | None


def open_plain_model(spec: EncoderSpec, located: str, device: str | None, attention: str | None) -> PlainModel | None:
    """Load a model without sentence-transformers, or return None if its files or the spec ask for more.

    Args:
        spec: model and settings.
        located: folder of the model; a Hub id is not plain.
        device: torch device; None chooses the default.
        attention: attention implementation; None leaves the choice to transformers.
    """
    if spec.trust_remote_code or spec.layer or spec.pooling or attention == "flash_attention_2":
        return None
    settings = read_plain_settings(Path(located))
    if settings is None:
        return None

    # The spec's prompts come before those of the files; sentence-transformers has these two names for every model.
    prompts = {"query": None, "document": None} | dict(spec.prompts)
    prompts |= {name: prompt for name, prompt in settings.prompts.items() if prompts.get(name) is None}
    default_prompt_name = spec.default_prompt_name or settings.default_prompt_name
    if default_prompt_name is not None and default_prompt_name not in prompts:
        return None

    from transformers import AutoConfig, AutoModel, AutoTokenizer

    config = AutoConfig.from_pretrained(located)
    config.use_cache = False
    chosen = {} if attention is None else {"attn_implementation": attention}
    transformer = AutoModel.from_pretrained(located, config=config, **chosen)
    limit = {} if settings.max_length is None else {"model_max_length": settings.max_length}
    tokenizer = AutoTokenizer.from_pretrained(located, **limit)
    if settings.max_length is None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, config.max_position_embeddings)

    heads = [Pooling(settings.dimensions, settings.pooling_mode), *([Normalize()] if settings.normalized else [])]
    model = PlainModel(
        Transformer(transformer, tokenizer), *heads, prompts=prompts, default_prompt_name=default_prompt_name
    )
    return model.to(device or best_device())


def read_plain_settings(folder: Path) -> PlainSettings | None:
    """Read the settings of a folder's model, or return None if the model is not plain.

    A model with any file or setting that is not known to be harmless is not plain, nor is one with damaged files:
    sentence-transformers says what is wrong with them.
    """
    try:
        modules = _read_json(folder / "modules.json")
        classes = [module["type"].rpartition(".")[2] for module in modules]
        paths = [module["path"] for module in modules]
        if (
            tuple(classes) not in (MODULES, MODULES[:-1])
            or not all(module["type"].startswith("sentence_transformers.") for module in modules)
            or paths[0] != ""
            or any(Path(path).name != path for path in paths)
        ):
            return None

        config, tokenizer = (_read_json(folder / name) for name in ("config.json", "tokenizer_config.json"))
        if (
            config["model_type"] not in MODEL_TYPES
            or not config.keys().isdisjoint({"auto_map", "quantization_config"})
            or tokenizer.get("chat_template")
            or any((folder / name).exists() for name in UNUSUAL_FILES)
            or "instructor" in str(folder).lower()  # sentence-transformers knows INSTRUCTOR models by their names
        ):
            return None

        files = {
            "model": folder / "config_sentence_transformers.json",
            "transformer": folder / "sentence_bert_config.json",
            "pooling": folder / paths[1] / "config.json",
        }
        if len(paths) > 2 and (folder / paths[2] / "config.json").exists():
            files["normalize"] = folder / paths[2] / "config.json"
        settings = {name: _read_json(file) for name, file in files.items()}
        if not all(map(_has_only_allowed, settings, settings.values())):
            return None

        model, pooling = settings["model"], settings["pooling"]
        # Old settings have a switch for each mode, and all that are on would be concatenated.
        switches = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token"}
        modes = [mode for mode, switch in switches.items() if pooling.get(switch)]
        if "pooling_mode" in pooling:
            modes.append(pooling["pooling_mode"])
        (mode,) = modes
        return PlainSettings(
            dimensions=int(pooling.get("embedding_dimension") or pooling["word_embedding_dimension"]),
            pooling_mode=mode,
            normalized=len(paths) > 2,
            max_length=settings["transformer"].get("max_seq_length"),
            prompts=dict(model.get("prompts", {})),
            default_prompt_name=model.get("default_prompt_name"),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _has_only_allowed(module: str, settings: dict[str, Any]) -> bool:
    """Return whether all settings of a module are known and have values that leave a model plain."""
    allowed = ALLOWED_SETTINGS[module]
    return all(
        name in allowed and ((values := allowed[name]) is None or value in values) for name, value in settings.items()
    )
