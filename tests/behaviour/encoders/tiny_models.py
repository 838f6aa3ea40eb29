"""Tiny models with random weights, in folders as several versions of sentence-transformers write them."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

HIDDEN, POSITIONS = 32, 64
SPECIAL = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>", "mask_token": "<mask>"}
"""Special tokens with the ids of RoBERTa: padding is 1."""

IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
LAYERS = {"hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
LEARNED = LAYERS | {"max_position_embeddings": POSITIONS, "type_vocab_size": 1}
"""Settings of models with a vector for each position."""

ROTARY = LAYERS | {"max_position_embeddings": POSITIONS, "num_key_value_heads": 2, "head_dim": 8}
"""Settings of decoders, which read positions as angles."""

BACKBONES: dict[str, dict[str, Any]] = {
    "bert": LEARNED,
    "roberta": LEARNED,
    "xlm-roberta": LEARNED,
    "mpnet": LEARNED,
    "albert": LEARNED | {"embedding_size": 16},
    "electra": LEARNED | {"embedding_size": 16},
    "distilbert": {"dim": HIDDEN, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": POSITIONS},
    "deberta-v2": LEARNED
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
    "modernbert": LAYERS
    | {"max_position_embeddings": POSITIONS, "local_attention": 8, "global_attn_every_n_layers": 2},
    "gpt2": {"n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": POSITIONS},
    "qwen3": ROTARY,
    "gemma3_text": ROTARY | {"use_bidirectional_attention": True, "sliding_window": 8},
    "xlnet": {"d_model": HIDDEN, "n_layer": 2, "n_head": 4, "d_inner": 48},
    "t5": {"d_model": HIDDEN, "num_layers": 2, "num_heads": 4, "d_ff": 48, "d_kv": 8},
}
"""Settings of the backbones, by the names that transformers gives them."""

POOLINGS = ("mean", "cls", "max", "lasttoken", "weightedmean", "cls+mean")
MODULES = ("none", "normalize", "dense", "dense, normalize", "layer norm, dense")
FIELDS = ("none", "truncate_dim", "prompts", "lower case", "shorter", "longer", "without prompt")
"""What a folder's settings say beside the modules."""

AXES: dict[str, tuple[Any, ...]] = {
    "backbone": tuple(BACKBONES),
    "pooling": POOLINGS,
    "padding": ("right", "left"),
    "dtype": ("float32", "float16", "bfloat16"),
    "modules": MODULES,
    "fields": FIELDS,
    "version": (2, 3, 4, 5, 6),
}
"""The axes of the matrix of models, and their values."""

MODE_KEYS = {
    "mean": "mean_tokens",
    "cls": "cls_token",
    "max": "max_tokens",
    "lasttoken": "lasttoken",
    "weightedmean": "weightedmean_tokens",
    "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
}
"""Keys of poolings before version 6, after `pooling_mode_`."""

PROMPTS = {"query": "find this: ", "document": "keep this: "}


@dataclass(frozen=True)
class TinyModel:
    """A folder of the matrix. See `AXES`."""

    backbone: str = "bert"
    pooling: str = "mean"
    padding: str = "right"
    dtype: str = "float32"
    modules: str = "none"
    fields: str = "none"
    version: int = 6

    def __str__(self) -> str:
        return "/".join(str(getattr(self, axis)) for axis in AXES)

    def write(self, folder: Path) -> Path:
        """Write the model to a new folder, and return it."""
        _write_transformer(self.backbone, folder, getattr(torch, self.dtype), self.padding)
        modules = [("", "Transformer"), *_write_heads(self, folder)]
        types = "sentence_transformers.models." if self.version < 6 else ""
        listed = [
            {"idx": index, "name": str(index), "path": path, "type": (types or PATHS[kind]) + kind}
            for index, (path, kind) in enumerate(modules)
        ]
        _write(folder / "modules.json", listed)
        _write(folder / "sentence_bert_config.json", _transformer_settings(self))
        _write(folder / "config_sentence_transformers.json", _model_settings(self))
        return folder


PATHS = {
    "Transformer": "sentence_transformers.base.modules.transformer.",
    "Pooling": "sentence_transformers.sentence_transformer.modules.pooling.",
    "Normalize": "sentence_transformers.base.modules.normalize.",
    "Dense": "sentence_transformers.base.modules.dense.",
    "LayerNorm": "sentence_transformers.sentence_transformer.modules.layer_norm.",
}
"""Import paths of the modules in version 6."""


@cache
def build_tokenizer() -> Tokenizer:
    """Train a small byte-level tokenizer, which knows every text and keeps case."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(Path(__file__).read_text().splitlines(), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _write_transformer(backbone: str, folder: Path, dtype: torch.dtype, padding: str) -> None:
    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(),
        padding_side=padding,
        model_input_names=["input_ids", "attention_mask"],
        **SPECIAL,
    )
    settings = IDS | BACKBONES[backbone] | {"vocab_size": len(tokenizer)}
    config = AutoConfig.for_model(backbone, **settings)
    config.initializer_range = config.initializer_factor = 0.3  # so that positions and attention matter
    model = AutoModel.from_config(config)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _write_heads(model: TinyModel, folder: Path) -> list[tuple[str, str]]:
    """Write the modules behind the transformer and return the path and the class of each."""
    modes = model.pooling.split("+")
    pooling: dict[str, Any] = {"include_prompt": model.fields != "without prompt"} if model.version > 2 else {}
    if model.version < 6:
        pooling["word_embedding_dimension"] = HIDDEN
        pooling |= {f"pooling_mode_{key}": mode in modes for mode, key in MODE_KEYS.items()}
    else:
        pooling |= {"embedding_dimension": HIDDEN, "pooling_mode": modes[0] if len(modes) == 1 else modes}
    heads = [_write_module(folder, "1_Pooling", "Pooling", pooling)]
    width = HIDDEN * len(modes)
    generator = torch.Generator().manual_seed(1)
    for name in [] if model.modules == "none" else model.modules.split(", "):
        path = f"{len(heads) + 1}_{name.title().replace(' ', '')}"
        if name == "normalize":
            heads.append(_write_module(folder, path, "Normalize", {}))
        elif name == "layer norm":
            tensors = {f"norm.{part}": torch.rand(width, generator=generator) + 0.5 for part in ("weight", "bias")}
            heads.append(_write_module(folder, path, "LayerNorm", {"dimension": width}, tensors, model))
        else:
            settings = {
                "in_features": width,
                "out_features": 20,
                "bias": True,
                "activation_function": "torch.nn.modules.activation.Tanh",
            }
            tensors = {
                "linear.weight": torch.randn(20, width, generator=generator) / width**0.5,
                "linear.bias": torch.randn(20, generator=generator) / 10,
            }
            heads.append(_write_module(folder, path, "Dense", settings, tensors, model))
            width = 20
    return heads


def _write_module(
    folder: Path,
    path: str,
    kind: str,
    settings: dict[str, Any],
    tensors: dict[str, torch.Tensor] | None = None,
    model: TinyModel | None = None,
) -> tuple[str, str]:
    (folder / path).mkdir()
    _write(folder / path / "config.json", settings)
    if tensors is not None and model is not None:
        stored = {name: tensor.to(getattr(torch, model.dtype)) for name, tensor in tensors.items()}
        if model.version == 2:
            torch.save(stored, folder / path / "pytorch_model.bin")
        else:
            save_file(stored, folder / path / "model.safetensors", {"format": "pt"})
    return path, kind


def _transformer_settings(model: TinyModel) -> dict[str, Any]:
    """Return what sentence_bert_config.json says of the transformer."""
    lengths = {"shorter": 24, "longer": POSITIONS + 100}
    settings: dict[str, Any] = {"do_lower_case": model.fields == "lower case"}
    if model.version < 6:
        return settings | {"max_seq_length": lengths.get(model.fields)}
    settings |= {
        "transformer_task": "feature-extraction",
        "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
        "module_output_name": "token_embeddings",
    }
    return settings | ({"max_seq_length": lengths[model.fields]} if model.fields in lengths else {})


def _model_settings(model: TinyModel) -> dict[str, Any]:
    """Return what config_sentence_transformers.json says of the whole model."""
    numbers = {2: "2.7.0", 3: "3.4.1", 4: "4.1.0", 5: "5.1.0", 6: "6.0.0"}
    settings: dict[str, Any] = {"__version__": {"sentence_transformers": numbers[model.version]}}
    if model.version > 2:
        settings |= {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    if model.version > 4:
        settings["model_type"] = "SentenceTransformer"
    if model.fields in ("prompts", "without prompt"):
        settings |= {"prompts": PROMPTS, "default_prompt_name": "document"}
    if model.fields == "truncate_dim":
        settings["truncate_dim"] = 12
    return settings


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2))
