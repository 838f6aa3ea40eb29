"""Protocols of embeddings APIs, which build the body of a call and parse the answer.

protocol   call               answer
openai     POST /embeddings   {"data": [{"index", "embedding"}], "model", "usage": {"prompt_tokens"}}
cohere     POST /embed        {"embeddings": {"float": [[…]]}, "meta": {"billed_units": {"input_tokens"}}}
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.spec import UPSTREAM_PATHS, Side, UpstreamProtocol, UpstreamSpec

SPACE_HEADER = "x-space-id"
"""Header in which another Lathe server names the embedding space of its vectors."""


class MalformedAnswerError(Exception):
    """Error for an answer that does not hold the requested vectors. The message says what the answer holds."""


@dataclass(frozen=True)
class CallOptions:
    """Options of a call: the prompt, and how long texts are truncated.

    Attributes:
        prompt: text put before each text, or Cohere's `input_type`; None for none.
        truncate: whether the API may truncate a text that is too long.
        truncation_side: end of a text that is cut off.
    """

    prompt: str | None = None
    truncate: bool = True
    truncation_side: Side = "right"


@dataclass(frozen=True)
class ApiAnswer:
    """Answer of an API to a call: vectors, number of tokens, and what the API reports of its model.

    Attributes:
        vectors: `(n, d)`, as the API gives them.
        tokens: number of tokens of all texts together; None if the API does not count them.
        reported: what the answer says of the model, such as its name, by field; a change means other vectors.
    """

    vectors: NDArray[np.float32]
    tokens: int | None
    reported: Mapping[str, str] = field(default_factory=dict)


class _EmbeddingsProtocol(Protocol):
    """Interface of the protocols of embeddings APIs."""

    path: str
    """Path that is appended to the address for a call."""

    prompts: Mapping[str, str]
    """Prompts that every model of the protocol has, by name."""

    default_prompt: str | None
    """Name of the prompt for requests that name none."""

    cuts_left: bool
    """Whether texts can be truncated at their beginning."""

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Build the JSON body of a call that asks for the vectors of texts, as a dict."""

    def parse_answer(self, content: Any, headers: Mapping[str, str], count: int) -> ApiAnswer:
        """Parse an answer into the vectors of `count` texts, in order, the number of tokens and the reported model.

        Raises:
            MalformedAnswerError: if the answer does not hold one vector for each text, all with the same dimensions.
        """


class _OpenAIProtocol:
    """Protocol of OpenAI, also of vLLM, TEI, Ollama, llama.cpp, Voyage, Infinity, LM Studio and Lathe."""

    path = UPSTREAM_PATHS["openai"]
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    cuts_left = False

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Build the JSON body of a call to an API like OpenAI's, as a dict, with the prompt before each text.

        The call asks for vectors in base64, in which a number takes 5 to 6 bytes instead of about 12.
        """
        prompted = [f"{options.prompt or ''}{text}" for text in texts]
        body = {"model": spec.model, "input": prompted, "encoding_format": "base64"}
        return body if spec.dimensions is None else body | {"dimensions": spec.dimensions}

    def parse_answer(self, content: Any, headers: Mapping[str, str], count: int) -> ApiAnswer:
        """Parse an answer in OpenAI's format: vectors by `index`, token count and model. A bad index raises.

        Vectors without `index` are taken in the order of the answer. If another Lathe answers, the id of its embedding
        space is reported with the model. An index that is out of range or repeats raises `MalformedAnswerError`.
        """
        items = _require_list(_get_field(content, "data"), "data", count)
        rows: list[Any] = [None] * count
        for position, item in enumerate(items):
            index = item.get("index", position) if isinstance(item, dict) else position
            if type(index) is not int or not 0 <= index < count or rows[index] is not None:  # False is not an index
                raise MalformedAnswerError(f"an index of {index!r:.40} in an answer for {count} texts")
            rows[index] = _get_field(item, "embedding")

        usage = content.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        model = content.get("model")
        reported = {"model": model} if isinstance(model, str) else {}
        if SPACE_HEADER in headers:
            reported["space_id"] = headers[SPACE_HEADER]

        return ApiAnswer(_stack_rows(rows, count), _read_count(tokens), reported)


class _CohereProtocol:
    """Protocol of Cohere, version 2. A prompt is not text: it is the value of `input_type`."""

    path = UPSTREAM_PATHS["cohere"]
    prompts: Mapping[str, str] = {
        "document": "search_document",
        "query": "search_query",
        "classification": "classification",
        "clustering": "clustering",
    }
    default_prompt: str | None = "document"
    cuts_left = True

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Build the JSON body of a call to Cohere's API, as a dict. Without a prompt, texts are documents."""
        end = "END" if options.truncation_side == "right" else "START"
        body = {
            "model": spec.model,
            "texts": list(texts),
            "input_type": options.prompt or self.prompts["document"],
            "embedding_types": ["float"],
            "truncate": end if options.truncate else "NONE",
        }
        return body if spec.dimensions is None else body | {"output_dimension": spec.dimensions}

    def parse_answer(self, content: Any, headers: Mapping[str, str], count: int) -> ApiAnswer:
        """Parse an answer in Cohere's format: the vectors in `embeddings.float`, and the billed number of tokens."""
        rows = _get_field(_get_field(content, "embeddings"), "float")
        meta = content.get("meta")
        billed = meta.get("billed_units") if isinstance(meta, dict) else None
        tokens = billed.get("input_tokens") if isinstance(billed, dict) else None
        return ApiAnswer(_stack_rows(rows, count), _read_count(tokens))


PROTOCOLS: dict[UpstreamProtocol, _EmbeddingsProtocol] = {
    "openai": _OpenAIProtocol(),
    "cohere": _CohereProtocol(),
}
"""Protocols by name."""


def _get_field(content: Any, name: str) -> Any:
    """Return the value of a field of a JSON object. A missing field, or content of another type, raises.

    Raises:
        MalformedAnswerError: if the content is not an object with the field.
    """
    if not isinstance(content, dict) or name not in content:
        raise MalformedAnswerError(f"JSON without {name!r}")
    return content[name]


def _require_list(items: Any, name: str, count: int) -> list[Any]:
    """Raise unless the content of the JSON field `name` is a list with `count` items, and return the list.

    Raises:
        MalformedAnswerError: if it is not a list, or has another number of items.
    """
    if not isinstance(items, list):
        raise MalformedAnswerError(f"{name} that are not a list")
    if len(items) != count:
        raise MalformedAnswerError(f"{len(items)} vectors for {count} texts")
    return items


def _stack_rows(embedding_rows: Any, count: int) -> NDArray[np.float32]:
    """Convert the vectors of an answer to a float32 array `(n, d)`. Unequal dimensions or other content raise.

    Vectors are lists of numbers, or float32 in base64. A null in a list becomes NaN, which JSON cannot write.

    Raises:
        MalformedAnswerError: if there are not `count` vectors, or they are empty, of different dimensions or not
            numbers.
    """
    rows = [_read_row(row) for row in _require_list(embedding_rows, "embeddings", count)]
    dimensions = {len(row) for row in rows}
    if len(dimensions) != 1 or 0 in dimensions:
        raise MalformedAnswerError(f"vectors of {', '.join(map(str, sorted(dimensions)))} numbers in one answer")
    return np.stack(rows)


def _read_row(row: Any) -> NDArray[np.float32]:
    try:
        if isinstance(row, str):
            return np.frombuffer(base64.b64decode(row, validate=True), "<f4").astype(np.float32)
        if isinstance(row, list):
            array = np.array(row, dtype=np.float64)  # null becomes NaN
            if array.ndim == 1:
                with np.errstate(over="ignore"):  # beyond float32 is inf, which is refused for its text
                    return array.astype(np.float32)
    except (ValueError, TypeError, binascii.Error):
        pass

    raise MalformedAnswerError("an embedding that is not a list of numbers")


def _read_count(value: Any) -> int | None:
    """Return a number of tokens unchanged, or None if the value is not a whole number of at least 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
