"""Models for mteb without a neural network: stored vectors with a chain, and a recorder of the texts that tasks use."""

from collections.abc import Iterable, Mapping
from copy import copy
from typing import Any

import numpy as np
from mteb.models import SearchEncoderWrapper
from mteb.models.abs_encoder import AbsEncoder
from mteb.models.model_meta import ModelMeta, ScoringFunction
from mteb.types import PromptType
from numpy.typing import NDArray

from lathe.training.evaluation.encoders import TextVectors, text_key
from lathe.training.evaluation.methods import RESCORED_CANDIDATES
from lathe.transforms.chain import Chain, build_leading_query_maps

BATCH_ROWS = 100_000
"""Batch size that mteb passes texts in; it can be large, since no text is encoded."""
COLLECTING_DIMENSIONS = 8
"""Number of dimensions of the random vectors that `Collector` returns."""


META = ModelMeta.create_empty(
    {
        "name": "lathe/stored",
        "revision": "none",
        "similarity_fn_name": ScoringFunction.COSINE,
        "use_instructions": False,
    }
)
"""Description of all models here for mteb, whose cache of results is not used."""


class StoredModel(AbsEncoder):
    """mteb model that looks up an encoder's stored vectors and transforms them with a chain of transforms.

    Args:
        vectors: raw vectors of all texts of the tasks.
        prompts: the encoder's prompts by name; mteb chooses a task's.
        default_prompt: prompt for tasks that name none.
        chain: fitted chain; None returns raw vectors.
        dimensions: dimensions to cut a nested chain to; None for its own.
    """

    mteb_model_meta = META

    def __init__(
        self,
        vectors: TextVectors,
        prompts: Mapping[str, str] | None = None,
        default_prompt: str | None = None,
        chain: Chain | None = None,
        dimensions: int | None = None,
    ) -> None:
        self.vectors = vectors
        self.model_prompts = dict(prompts or {}) or None
        self.default_prompt = default_prompt
        self.chain = chain
        self.dimensions = dimensions

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` float32 of the texts that mteb passes.

        Stored vectors are looked up, and transformed if there is a chain of transforms. The chain is applied to queries
        of a search as queries, and to all other texts as documents.

        Raises:
            KeyError: if a text's vector is not stored.
        """
        vectors = self.vectors.get(self.keys(list_texts(inputs), task_metadata, prompt_type))
        if self.chain is None or not len(vectors):
            return vectors
        transform = self.chain.transform_queries if prompt_type == PromptType.query else self.chain.floats
        return np.asarray(transform(vectors, self.dimensions), np.float32)

    def keys(self, texts: Iterable[str], task_metadata: Any, prompt_type: Any = None) -> list[bytes]:
        """Return the key of each text's vector: a hash of the text and its prompt.

        mteb chooses the prompt for this task and for queries or documents.
        """
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        prompt_text = self.model_prompts[prompt] if self.model_prompts and prompt else self.default_prompt
        return [text_key(text, prompt_text) for text in texts]


class RescoringModel:
    """mteb search model that finds candidates by transformed vectors, and ranks them again by raw vectors.

    Each query has `RESCORED_CANDIDATES` candidates. Maps of queries with which the chain of transforms begins, such as
    a query adapter, count for the second ranking too.

    Args:
        model: the model with the chain.
    """

    mteb_model_meta = META

    def __init__(self, model: StoredModel) -> None:
        assert model.chain is not None
        original = copy(model)
        # Query maps at the chain's beginning change what is looked for, so the raw vectors are searched by their
        # outputs.
        original.chain, original.dimensions = build_leading_query_maps(model.chain), None
        self.candidates = SearchEncoderWrapper(model)
        self.originals = SearchEncoderWrapper(original)

    def index(self, corpus: Any, **options: Any) -> None:
        """Index the documents to search twice: as the chain of transforms maps them, and as raw vectors.

        mteb calls this before `search`.
        """
        self.candidates.index(corpus, **options)
        self.originals.index(corpus, **options)

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **options: Any) -> Any:
        """Find candidates by transformed vectors, and return the similarities of their raw vectors.

        The similarities are by query id and document id. If mteb names the candidates in `top_ranked`, only these are
        ranked.
        """
        if top_ranked is None:
            ranking = self.candidates.search(queries, top_k=RESCORED_CANDIDATES, **options)
            top_ranked = {query: list(documents) for query, documents in ranking.items()}
        return self.originals.search(queries, top_k=top_k, top_ranked=top_ranked, **options)


class Collector(AbsEncoder):
    """mteb model that records which texts a task encodes, with prompt names, and returns random vectors for them.

    Args:
        prompts: the encoder's prompts by name; mteb chooses a task's.

    Attributes:
        asked: recorded (prompt name, text) pairs, in order of first use, as keys of a dict.
    """

    mteb_model_meta = META

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self.model_prompts = dict(prompts or {}) or None
        self.asked: dict[tuple[str | None, str], None] = {}
        self.random = np.random.default_rng(0)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """Record the texts with their prompt names in `asked`, and return random unit vectors `(n, 8)` for them."""
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        texts = list_texts(inputs)
        self.asked |= dict.fromkeys((prompt, text) for text in texts)
        vectors = self.random.standard_normal((len(texts), COLLECTING_DIMENSIONS), np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def list_texts(inputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the texts of all batches that mteb passes, as one list."""
    return [text for batch in inputs for text in batch["text"]]
