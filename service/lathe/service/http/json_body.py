"""Parsing and validation of JSON request bodies, within limits of size and memory.

`read_json`, on the event loop:                      `validate_json`, in the thread where the route uses the body:
whole body ──► memory to parse it ──►                parse ──► validate
`request_body`                                       400 413   400 422
"""

import codecs
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic import ValidationError
from starlette.requests import Request

from lathe.service.codec import JSON
from lathe.service.errors import BadValueError, ServiceError, TooLargeError, WrongShapeError
from lathe.service.http.request_body import FREE_BYTES, RequestMemory, read_body
from lathe.service.settings import Settings
from lathe.training.json_object import UNKNOWN_FIELD, JsonObject
from lathe.training.sources.rows import restore_long_integers

FREE_CONTAINERS = 131_072
BYTES_PER_CONTAINER = 32
"""A JSON body may hold `FREE_CONTAINERS` lists and objects, plus one for every `BYTES_PER_CONTAINER` of its bytes.

Parsed, an empty list takes 64 bytes and the smallest object 192, of 3 and 7 bytes of JSON: a body of nothing else would
take 30 times its size. Numbers and texts take at most 16 times their size, and need no limit of their own."""

BYTES_PER_VALUE = 40
"""Bytes of a Python integer or float, and of its slot in a list."""

BYTES_PER_CHARACTER = 4
"""Bytes per character of a Python string with a character beyond U+FFFF; every byte could be a character."""

AnyBody = TypeVar("AnyBody", bound=JsonObject)


async def read_json(request: Request, settings: Settings, any_content_type: bool = False) -> bytes:
    """Read the body of a JSON request, wait until there is memory to parse it, and return its bytes, not yet parsed.

    The memory is reserved until the response begins, or until `RequestMemory.end_parsing`; small bodies do not wait.
    Parsing and using the body take time: pass it to a function in another thread, which begins with `validate_json`. A
    route that then waits must keep no name for the body, or the body is not freed meanwhile.

    Args:
        request: request whose body is read.
        settings: settings with the size limit.
        any_content_type: whether to accept other content types than JSON; only for requests that change no state.

    Raises:
        ServiceError: as `read_body` does; 415 for another content type.
    """
    content_type = request.headers.get("content-type", "")
    # A web page can make a browser send text, forms and bodies without a content type to any server without a
    # preflight request, but not JSON.
    if not any_content_type and content_type.partition(";")[0].strip().lower() != JSON:
        raise ServiceError(f"the content-type must be {JSON}, not {content_type[:80] or 'missing'}", status=415)
    body = bytes(await read_body(request, settings))
    if len(body) > FREE_BYTES:
        memory: RequestMemory = request.scope["memory"]
        await memory.reserve(estimate_parsed_bytes(body))
    return body


def estimate_parsed_bytes(body: bytes) -> int:
    """Return an upper bound of the memory in bytes that a JSON body takes when parsed."""
    return BYTES_PER_CHARACTER * len(body) + BYTES_PER_VALUE * body.count(b",")


def validate_json(body: bytes, schema: type[AnyBody]) -> AnyBody:
    """Parse a JSON object and validate it by a pydantic schema. Return the instance of the schema.

    Raises:
        BadValueError: if the body is not valid JSON, or a field has a wrong value.
        TooLargeError: if the body holds too many lists and objects for its size.
        WrongShapeError: if the body is not a JSON object, or a field has a wrong type or is missing.
    """
    content = parse_json(body)
    if not isinstance(content, dict):
        raise WrongShapeError(f"the body must be a JSON object, got {type(content).__name__}")
    if "metadata" in schema.known:
        content = restore_long_integers(body, content, content.get("metadata"))
    return validate_fields(content, schema)


def validate_fields(fields: dict[str, Any], schema: type[AnyBody]) -> AnyBody:
    """Validate the fields of a JSON object by a pydantic schema. Return the instance of the schema.

    Raises:
        BadValueError: if a field has a wrong value.
        WrongShapeError: if a field has a wrong type or is missing.
    """
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise _convert_validation_error(error) from None


def parse_json(body: bytes) -> Any:
    """Parse a JSON body within limits on its lists and objects, and return its content.

    If a key is repeated, its last value counts. A byte order mark before it is ignored.

    Raises:
        BadValueError: if the body is not valid JSON; NaN and Infinity are not.
        TooLargeError: if the body has so many lists and objects that it would take many times its size in memory.
    """
    _require_few_containers(body)
    body = body.removeprefix(codecs.BOM_UTF8)  # editors and .NET write it, and RFC 8259 lets it be ignored
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        message = f"the body is not JSON: {_explain_json_error(error, body)}"
        raise BadValueError(message, code="malformed_body") from None


def _explain_json_error(error: orjson.JSONDecodeError, body: bytes) -> str:
    try:
        body.decode()
    except UnicodeDecodeError as problem:
        return f"byte 0x{body[problem.start]:02x} at {problem.start} is not UTF-8"
    return f"{error.msg} at character {error.pos}"


def _require_few_containers(body: bytes) -> None:
    allowed = FREE_CONTAINERS + len(body) // BYTES_PER_CONTAINER
    if body.count(b"[") + body.count(b"{") <= allowed:  # brackets inside texts count here, so this only clears a body
        return
    containers = count_containers(body)
    if containers > allowed:
        raise TooLargeError(f"the body holds {containers} lists and objects; one of its size may hold {allowed}")


def count_containers(body: bytes) -> int:
    """Return the number of lists and objects in an unparsed JSON body: opening brackets outside of strings."""
    unescaped = body.replace(rb"\\", b"  ").replace(rb"\"", b"  ")  # what is left of the quotes begins or ends a text
    characters = np.frombuffer(unescaped, np.uint8)
    # A character is outside strings if an even number of quotes precede it; a sum that overflows keeps its parity.
    outside = np.cumsum(characters == ord('"'), dtype=np.uint8) % 2 == 0
    return int(np.count_nonzero(outside & ((characters == ord("[")) | (characters == ord("{")))))


def _convert_validation_error(error: ValidationError) -> ServiceError:
    """Convert a pydantic error to a `ServiceError` on one field: 400 for a wrong value, 422 for a wrong type.

    Of several problems, the first with a wrong value is reported, else the first field's. A missing field counts as a
    wrong type.
    """
    details = error.errors(include_url=False)
    # Of a union's alternatives the value error says most; else the one that failed last: of texts with a null at
    # position 1500, the alternative "numbers" fails at 0.
    of_first_field = [d for d in details if d["loc"][:1] == details[0]["loc"][:1]]
    furthest = max(of_first_field, key=lambda d: [part for part in d["loc"] if isinstance(part, int)])
    detail = next((d for d in details if not _is_type_problem(d["type"])), furthest)
    location = detail["loc"]
    if detail["type"] == UNKNOWN_FIELD:
        location = (*location, detail["ctx"]["field"])

    # Pydantic also names the branches of unions, such as "str" and "list[int]", which are not fields.
    fields = [part for part in location if part not in ("str", "int") and "[" not in str(part)]
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in fields).removeprefix(".")
    message = f"{place or 'the body'}: {detail['msg'].removeprefix('Value error, ')}"
    if detail["input"] is None and detail["type"] != "missing":
        message += ", got null"
    error_type = WrongShapeError if _is_type_problem(detail["type"]) else BadValueError
    return error_type(message, param=".".join(map(str, fields)) or None)


def _is_type_problem(error_type: str) -> bool:
    return error_type.endswith(("_type", "_parsing")) or error_type in {"missing", "int_from_float"}
