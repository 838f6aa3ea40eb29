"""What mteb takes for a model: stored vectors through a method; or nobody's, to learn which texts a task asks for."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from numpy.typing import NDArray

from training.evaluation.store import MemoryStore, VectorStore, text_key
from transforms.chain import Chain

BATCH_ROWS = 100_000
"""Rows that mteb hands over at once: none of them meets a model."""
COLLECTING_DIMENSIONS = 8


class StoredModel(AbsEncoder):
    """Vectors of one encoder through one method, in mteb's protocol.

    Args:
        name: of encoder and method together; with `revision`, their hash, it tells results apart in any cache.
        revision: see there.
        prompts: the encoder's, by name; a task's are chosen as mteb does.
        default_prompt: for tasks that name none.
        store: has the raw vectors of every text that is asked for.
        chain: None leaves them raw.
        dimensions: a size to cut to, where the chain is nested.
    """

    def __init__(
        self,
        name: str,
        revision: str,
        prompts: Mapping[str, str],
        default_prompt: str | None,
        store: VectorStore,
        chain: Chain | None = None,
        dimensions: int | None = None,
    ) -> None:
        self.mteb_model_meta = model_meta(name, revision)
        self.model_prompts = dict(prompts) or None
        self.default_prompt = default_prompt
        self.store = store
        self.chain = chain
        self.dimensions = dimensions

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """The vectors of the texts, in float32."""
        vectors = self.store.get(self.keys(texts_of(inputs), task_metadata, prompt_type))
        if self.chain is None or not len(vectors):
            return vectors
        return np.asarray(self.chain.floats(vectors, self.dimensions), np.float32)

    def keys(self, texts: Iterable[str], task_metadata: Any, prompt_type: Any = None) -> list[bytes]:
        """What the raw vectors of a task's texts are found by in the store, with the prompt that mteb chooses."""
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        written = self.model_prompts[prompt] if self.model_prompts and prompt else self.default_prompt
        return [text_key(text, written) for text in texts]


class PromptedModel(StoredModel):
    """Stored vectors of texts that carry their prompts."""

    def __init__(self, store: MemoryStore, prompts: dict[str, str]) -> None:
        super().__init__("lathe/experiment", "none", {}, None, store)  # type: ignore[arg-type]  # a store by its methods
        self.by_type = prompts

    def encode(self, inputs: Any, *, task_metadata: Any, prompt_type: Any = None, **_: Any) -> NDArray[np.float32]:
        """The vectors of the texts."""
        prompt = self.by_type["document" if getattr(prompt_type, "value", None) == "document" else "query"]
        return self.store.get([text_key(prompt + text) for text in texts_of(inputs)])


class Collector(AbsEncoder):
    """Writes down which texts a task asks for, with their prompts; its vectors are random."""

    def __init__(self, prompts: Mapping[str, str]) -> None:
        self.mteb_model_meta = model_meta("lathe/collector", "none")
        self.model_prompts = dict(prompts) or None
        self.asked: dict[tuple[str | None, str], None] = {}
        self.random = np.random.default_rng(0)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """Vectors of nothing."""
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        texts = texts_of(inputs)
        self.asked |= dict.fromkeys((prompt, text) for text in texts)
        vectors = self.random.standard_normal((len(texts), COLLECTING_DIMENSIONS), np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def texts_of(inputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """The texts of mteb's batches."""
    return [text for batch in inputs for text in batch["text"]]


def model_meta(name: str, revision: str) -> ModelMeta:
    """What mteb wants to know of a model."""
    return ModelMeta(
        loader=None,
        name=name if "/" in name else f"lathe/{name}",
        revision=revision,
        release_date=None,
        languages=None,
        n_parameters=None,
        memory_usage_mb=None,
        max_tokens=None,
        embed_dim=None,
        license=None,
        open_weights=None,
        public_training_code=None,
        public_training_data=None,
        framework=[],
        similarity_fn_name=ScoringFunction.COSINE,
        use_instructions=False,
        training_datasets=None,
    )
