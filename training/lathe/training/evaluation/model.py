"""Models for mteb without a neural network: stored vectors with a chain, and a recorder of the texts of a task."""

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
"""Batch size in which mteb passes texts. It can be large, because no text is encoded."""
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
"""Description of all models in this module for mteb. mteb's cache of results is not used."""


class StoredModel(AbsEncoder):
    """mteb model that looks up an encoder's stored vectors and transforms them with a chain of transforms.

    Args:
        vectors: raw vectors of all texts of the tasks.
        prompts: the encoder's prompts by name; mteb chooses the prompt of a task.
        default_prompt: prompt for tasks without a prompt name.
        chain: fitted chain; None returns raw vectors.
        dimensions: number of dimensions to truncate the output of a nested chain to; None to keep all.
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
        """Look up the stored vectors `(n, d)` of mteb's texts, and apply the chain, if any. A missing vector raises.

        The chain is applied to queries of a search as queries, and to all other texts as documents. The vectors are
        float32.

        Raises:
            KeyError: if the vector of a text is not stored.
        """
        vectors = self.vectors.get(self.keys(list_texts(inputs), task_metadata, prompt_type))
        if self.chain is None or not len(vectors):
            return vectors
        transform = self.chain.transform_queries if prompt_type == PromptType.query else self.chain.floats
        return np.asarray(transform(vectors, self.dimensions), np.float32)

    def keys(self, texts: Iterable[str], task_metadata: Any, prompt_type: Any = None) -> list[bytes]:
        """Return the key of each text's vector, a hash of the text and the prompt before it.

        mteb chooses the prompt by the task, and by whether the texts are queries or documents.
        """
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        prompt_text = self.model_prompts[prompt] if self.model_prompts and prompt else self.default_prompt
        return [text_key(text, prompt_text) for text in texts]


class RescoringModel:
    """mteb search model that finds candidates by transformed vectors, and rescores them by raw vectors.

    A query has `RESCORED_CANDIDATES` candidates. Query maps at the beginning of the chain of transforms, such as a
    query adapter, are applied to the raw query vectors before rescoring.

    Args:
        model: the model with a chain.
    """

    mteb_model_meta = META

    def __init__(self, model: StoredModel) -> None:
        assert model.chain is not None
        original = copy(model)
        # Query maps at the chain's beginning change what is searched for: mapped queries search the raw vectors.
        original.chain, original.dimensions = build_leading_query_maps(model.chain), None
        self.candidates = SearchEncoderWrapper(model)
        self.originals = SearchEncoderWrapper(original)

    def index(self, corpus: Any, **options: Any) -> None:
        """Index the documents twice: transformed by the chain, and as raw vectors. mteb calls this before `search`."""
        self.candidates.index(corpus, **options)
        self.originals.index(corpus, **options)

    def search(self, queries: Any, *, top_k: int, top_ranked: Any = None, **options: Any) -> Any:
        """Find candidates by transformed vectors, and return the similarities of the candidates' raw vectors.

        The result is a dict of query id to document id to similarity, with at most `top_k` documents for a query. If
        mteb passes candidates as `top_ranked`, these are scored, and no candidates are searched.
        """
        if top_ranked is None:
            ranking = self.candidates.search(queries, top_k=RESCORED_CANDIDATES, **options)
            top_ranked = {query: list(documents) for query, documents in ranking.items()}
        return self.originals.search(queries, top_k=top_k, top_ranked=top_ranked, **options)


class Collector(AbsEncoder):
    """mteb model that records the texts and prompt names that a task encodes, and returns random vectors.

    Args:
        prompts: the encoder's prompts by name; mteb chooses the prompt of a task.

    Attributes:
        asked: recorded `(prompt name, text)` pairs, in order of first use, as keys of a dict.
    """

    mteb_model_meta = META

    def __init__(self, prompts: Mapping[str, str] | None = None) -> None:
        self.model_prompts = dict(prompts or {}) or None
        self.asked: dict[tuple[str | None, str], None] = {}
        self.random = np.random.default_rng(0)

    def encode(
        self, inputs: Iterable[Mapping[str, Any]], *, task_metadata: Any, prompt_type: Any = None, **_: Any
    ) -> NDArray[np.float32]:
        """Record the texts with the task's prompt name in `asked`, and return random unit vectors `(n, 8)`."""
        prompt = self.get_prompt_name(task_metadata, prompt_type)
        texts = list_texts(inputs)
        self.asked |= dict.fromkeys((prompt, text) for text in texts)
        vectors = self.random.standard_normal((len(texts), COLLECTING_DIMENSIONS), np.float32)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def list_texts(inputs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Concatenate the texts of all batches that mteb passes."""
    return [text for batch in inputs for text in batch["text"]]
