"""Protocols of embeddings APIs: the body of a call, and the vectors in its answer.

protocol   call               answer
openai     POST /embeddings   {"data": [{"index", "embedding"}], "model", "usage": {"prompt_tokens"}}
tei        POST /embed        [[…]]; GET /info names the model
ollama     POST /api/embed    {"embeddings": [[…]], "model", "prompt_eval_count"}; GET /api/tags has digests of models
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

TOKENS_HEADER = "x-compute-tokens"
"""Header in which text-embeddings-inference counts the tokens of a call."""

SPACE_HEADER = "x-space-id"
"""Header in which another Lathe names the space of its vectors."""


class MalformedAnswerError(Exception):
    """Error for an answer that does not hold the vectors asked for; the message says what it holds."""


@dataclass(frozen=True)
class CallOptions:
    """How the texts of a call are encoded.

    Attributes:
        prompt: text put before each text, or what the protocol has in its place; None for none.
        truncate: whether the API may truncate a text that is too long.
        truncation_side: end of a text that is cut off.
    """

    prompt: str | None = None
    truncate: bool = True
    truncation_side: Side = "right"


@dataclass(frozen=True)
class Answer:
    """Vectors of a call's texts.

    Attributes:
        vectors: `(n, d)`, as the API gives them.
        tokens: number of tokens of all texts together; None if the API does not count them.
        stated: what the answer says of the model, such as its name; a change means other vectors.
    """

    vectors: NDArray[np.float32]
    tokens: int | None
    stated: Mapping[str, str] = field(default_factory=dict)


class EmbeddingsProtocol(Protocol):
    """Interface of the protocols: paths, bodies of calls, and the reading of answers."""

    path: str
    """Path that is appended to the address for a call."""

    identity_path: str | None
    """Path of a GET request whose answer identifies the model; None if there is none."""

    prompts: Mapping[str, str]
    """Prompts that every model of the protocol has, by name."""

    default_prompt: str | None
    """Name of the prompt for requests that name none."""

    cuts_left: bool
    """Whether texts can be truncated at their beginning."""

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Return the JSON body of a call."""

    def read_answer(self, found: Any, headers: Mapping[str, str], count: int) -> Answer:
        """Return the vectors in a JSON answer, in the order of the `count` texts.

        Raises:
            MalformedAnswerError: if it does not hold one vector for each text, all of the same dimensions.
        """

    def read_identity(self, found: Any, model: str) -> dict[str, str]:
        """Return what the answer of `identity_path` says of the model; empty if it says nothing."""


class OpenAIProtocol:
    """OpenAI's protocol, which vLLM, llama.cpp, Voyage, Infinity, LM Studio and Lathe speak too."""

    path = UPSTREAM_PATHS["openai"]
    identity_path: str | None = None
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    cuts_left = False

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Return the body, which asks for base64: four bytes a number, where JSON has about twelve."""
        body = {"model": spec.model, "input": prepend_prompt(texts, options), "encoding_format": "base64"}
        return body if spec.dimensions is None else body | {"dimensions": spec.dimensions}

    def read_answer(self, found: Any, headers: Mapping[str, str], count: int) -> Answer:
        """Return the vectors by their `index`, whatever their order; numbers are taken as base64 or as a list."""
        items = require_list(get_field(found, "data"), "data", count)
        rows: list[Any] = [None] * count
        for position, item in enumerate(items):
            index = item.get("index", position) if isinstance(item, dict) else position
            if not isinstance(index, int) or not 0 <= index < count or rows[index] is not None:
                raise MalformedAnswerError(f"an index of {index!r:.40} in an answer for {count} texts")
            rows[index] = get_field(item, "embedding")
        usage = found.get("usage")
        tokens = usage.get("prompt_tokens") if isinstance(usage, dict) else None
        model = found.get("model")
        stated = {"model": model} if isinstance(model, str) else {}
        return Answer(stack_rows(rows, count), read_count(tokens), stated | read_space(headers))

    def read_identity(self, found: Any, model: str) -> dict[str, str]:
        """Return an empty dict: the list of models that the protocol has says nothing of their versions."""
        return {}


class TeiProtocol:
    """Protocol of text-embeddings-inference, which Lathe speaks too; a server of one model may ignore `model`."""

    path = UPSTREAM_PATHS["tei"]
    identity_path: str | None = "/info"
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    cuts_left = True

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Return the body, which asks for vectors as the model gives them."""
        body = {
            "inputs": prepend_prompt(texts, options),
            "model": spec.model,
            "normalize": False,
            "truncate": options.truncate,
            "truncation_direction": options.truncation_side,
        }
        return body if spec.dimensions is None else body | {"dimensions": spec.dimensions}

    def read_answer(self, found: Any, headers: Mapping[str, str], count: int) -> Answer:
        """Return the vectors, the count of tokens in a header, and the space if the server is another Lathe."""
        tokens = headers.get(TOKENS_HEADER, "")
        return Answer(stack_rows(found, count), int(tokens) if tokens.isdecimal() else None, read_space(headers))

    def read_identity(self, found: Any, model: str) -> dict[str, str]:
        """Return model and revision of the server's only model; of a Lathe, the fingerprint of the encoder `model`."""
        if not isinstance(found, dict):
            return {}
        encoders = found.get("encoders")
        for encoder in encoders if isinstance(encoders, list) else []:
            if isinstance(encoder, dict) and model in (encoder.get("name"), encoder.get("model")):
                return keep_strings(encoder, "fingerprint")
        return keep_strings(found, "model_id", "model_sha")


class OllamaProtocol:
    """Ollama's protocol."""

    path = UPSTREAM_PATHS["ollama"]
    identity_path: str | None = "/api/tags"
    prompts: Mapping[str, str] = {}
    default_prompt: str | None = None
    cuts_left = False

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Return the body, with the prompt in front of each text."""
        body = {"model": spec.model, "input": prepend_prompt(texts, options), "truncate": options.truncate}
        return body if spec.dimensions is None else body | {"dimensions": spec.dimensions}

    def read_answer(self, found: Any, headers: Mapping[str, str], count: int) -> Answer:
        """Return the vectors in `embeddings`, and the count of tokens."""
        rows = get_field(found, "embeddings")
        return Answer(stack_rows(rows, count), read_count(found.get("prompt_eval_count")))

    def read_identity(self, found: Any, model: str) -> dict[str, str]:
        """Return the digest of the model's files in the list of models; empty if the model is not in it."""
        models = found.get("models") if isinstance(found, dict) else None
        for listed in models if isinstance(models, list) else []:
            if isinstance(listed, dict) and listed.get("name") in (model, f"{model}:latest"):
                return keep_strings(listed, "digest")
        return {}


class CohereProtocol:
    """Cohere's protocol, version 2. It has no prompts but an `input_type`: the text of a prompt is its value."""

    path = UPSTREAM_PATHS["cohere"]
    identity_path: str | None = None
    prompts: Mapping[str, str] = {
        "document": "search_document",
        "query": "search_query",
        "classification": "classification",
        "clustering": "clustering",
    }
    default_prompt: str | None = "document"
    cuts_left = True

    def build_body(self, spec: UpstreamSpec, texts: Sequence[str], options: CallOptions) -> dict[str, Any]:
        """Return the body; without a prompt, texts are documents."""
        end = "END" if options.truncation_side == "right" else "START"
        body = {
            "model": spec.model,
            "texts": list(texts),
            "input_type": options.prompt or self.prompts["document"],
            "embedding_types": ["float"],
            "truncate": end if options.truncate else "NONE",
        }
        return body if spec.dimensions is None else body | {"output_dimension": spec.dimensions}

    def read_answer(self, found: Any, headers: Mapping[str, str], count: int) -> Answer:
        """Return the vectors in `embeddings.float`, and the billed tokens."""
        rows = get_field(get_field(found, "embeddings"), "float")
        meta = found.get("meta")
        billed = meta.get("billed_units") if isinstance(meta, dict) else None
        tokens = billed.get("input_tokens") if isinstance(billed, dict) else None
        return Answer(stack_rows(rows, count), read_count(tokens))

    def read_identity(self, found: Any, model: str) -> dict[str, str]:
        """Return an empty dict: the API says nothing of a model's version."""
        return {}


PROTOCOLS: dict[UpstreamProtocol, EmbeddingsProtocol] = {
    "openai": OpenAIProtocol(),
    "tei": TeiProtocol(),
    "ollama": OllamaProtocol(),
    "cohere": CohereProtocol(),
}
"""Protocols by name."""


def prepend_prompt(texts: Sequence[str], options: CallOptions) -> list[str]:
    """Return the texts, each with the prompt in front."""
    return [f"{options.prompt}{text}" for text in texts] if options.prompt else list(texts)


def get_field(found: Any, name: str) -> Any:
    """Return a field of a JSON object; raise `MalformedAnswerError` if it is no object that has the field."""
    if not isinstance(found, dict) or name not in found:
        raise MalformedAnswerError(f"JSON without {name!r}")
    return found[name]


def require_list(found: Any, name: str, count: int) -> list[Any]:
    """Return `found`, a list of `count` items; raise `MalformedAnswerError`, which names the field, if it is not."""
    if not isinstance(found, list):
        raise MalformedAnswerError(f"{name} that are no list")
    if len(found) != count:
        raise MalformedAnswerError(f"{len(found)} vectors for {count} texts")
    return found


def stack_rows(found: Any, count: int) -> NDArray[np.float32]:
    """Return `count` rows, each a list of numbers or base64 of float32, as an array `(n, d)`.

    NaN, which JSON cannot write, may come as null; it stays NaN.

    Raises:
        MalformedAnswerError: if they are anything else, empty, or of different dimensions.
    """
    rows = [_read_row(row) for row in require_list(found, "embeddings", count)]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or 0 in widths:
        raise MalformedAnswerError(f"vectors of {', '.join(map(str, sorted(widths)))} numbers in one answer")
    return np.stack(rows)


def _read_row(row: Any) -> NDArray[np.float32]:
    """Convert a list of numbers, or base64 of float32, to a row `(d,)`; raise `MalformedAnswerError` otherwise."""
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
    raise MalformedAnswerError("an embedding that is no list of numbers")


def read_count(value: Any) -> int | None:
    """Return a number of tokens; None if the value is no whole number of at least 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def read_space(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the space that another Lathe names in its headers; empty for other servers."""
    return {"space_id": headers[SPACE_HEADER]} if SPACE_HEADER in headers else {}


def keep_strings(found: Mapping[str, Any], *names: str) -> dict[str, str]:
    """Return those fields of a JSON object that have one of these names and are strings."""
    return {name: found[name] for name in names if isinstance(found.get(name), str)}
