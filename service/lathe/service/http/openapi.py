"""OpenAPI descriptions of bodies and responses that routes read and write themselves, and shared parameters."""

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel

from lathe.service.codec import JSON
from lathe.training.json_object import JsonObject

BINARY = {"schema": {"type": "string", "format": "binary"}}
"""OpenAPI media type of bytes, such as a .npy file."""

VECTOR_HEADERS = {
    name: {"schema": {"type": "string"}, "description": text}
    for name, text in {
        "x-space-id": "vectors with the same id are comparable",
        "x-chain": "name@version, or none",
        "x-dimensions": "of each vector, as floats",
        "x-input-type": "whether the vectors are of queries or documents: query or document",
        "x-output-dtype": "float, float16, int8, uint8, binary, ubinary or codes",
        "x-tokens": "of the texts that were read, as in `usage`",
        "x-tokens-cut": "of the texts that were not read; estimated for very long texts",
        "x-ignored-fields": "names of the request that were ignored; /embed and /v1/embeddings alone ignore any",
        "x-request-id": "as sent, or made",
        "x-queue-time": "milliseconds",
        "x-inference-time": "milliseconds",
    }.items()
}
"""OpenAPI headers of a response with vectors."""


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str


class ErrorAnswer(BaseModel):
    """Every error's body."""

    error: ErrorDetail
    error_type: str


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer} for status in (400, 401, 403, 404, 409, 413, 415, 422, 429, 503)
}
"""OpenAPI responses that any route may give besides its own; declared instead of FastAPI's validation error."""


def describe_body(schema: type[JsonObject], **more: Any) -> dict[str, Any]:
    """Return the OpenAPI entry `requestBody`, made from the body's schema, for a route that parses its body itself.

    Args:
        schema: schema of the body.
        more: further media types.
    """
    json_schema = schema.model_json_schema()
    extra = schema.model_config.get("json_schema_extra")
    if isinstance(extra, dict):
        json_schema |= extra  # pydantic sorts the keys of examples
    described = _inline_references(json_schema, json_schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {JSON: {"schema": described}} | more}}


def _inline_references(json_schema: Any, definitions: dict[str, Any]) -> Any:
    """Return a copy of a JSON schema in which each `$ref` is replaced by the definition that it names.

    What stands next to a `$ref`, such as a field's own description, takes the place of the same in the definition.
    FastAPI collects only the definitions of models that it reads itself.
    """
    if isinstance(json_schema, list):
        return [_inline_references(part, definitions) for part in json_schema]
    if not isinstance(json_schema, dict):
        return json_schema
    if "$ref" in json_schema:
        definition = definitions[json_schema["$ref"].rpartition("/")[2]]
        beside = {key: value for key, value in json_schema.items() if key != "$ref"}
        return _inline_references(definition | beside, definitions)
    return {key: _inline_references(value, definitions) for key, value in json_schema.items()}


def describe_vectors_response(schema: dict[str, Any], **media_types: Any) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI `responses` of a route that answers with vectors: 200 with its headers, and the errors.

    Args:
        schema: schema of the JSON response.
        **media_types: content of further media types, by their names.
    """
    content = {JSON: {"schema": schema}} | media_types
    return {**ERRORS, 200: {"description": "Vectors", "headers": VECTOR_HEADERS, "content": content}}


ModelName = Annotated[
    str, Path(description="A value of `model`, as `/v1/embeddings` takes it.", examples=["all-MiniLM-L6-v2+compact"])
]
ChainName = Annotated[str, Path(description="Name of the chain.", examples=["compact"])]
ChainReference = Annotated[
    str, Path(description="Chain: NAME for its live version, or NAME@VERSION.", examples=["compact@1"])
]
EncoderName = Annotated[str, Path(description="Name of the encoder.", examples=["all-MiniLM-L6-v2"])]
IndexName = Annotated[str, Path(description="Name of the index.", examples=["docs"])]
JobId = Annotated[
    str, Path(description="Id of the job, as the answer that queued it gives it.", examples=["202611270942295f3a9c01"])
]
VersionNumber = Annotated[str, Path(description="Number of the version.", examples=["1"])]
SizeRouteDimensions = Annotated[str, Path(description="Number of dimensions that requests name.", examples=["128"])]
Force = Annotated[bool, Query(description="Whether a version in use is deleted too.", examples=[True])]
