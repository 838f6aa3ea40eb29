"""Base class of requests in JSON: types are strict, null means the default, and unknown fields are refused."""

import inspect
import re
from collections.abc import Collection
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from lathe.transforms.suggestions import find_similar

ATTRIBUTES = re.compile(r"\n*^Attributes:\n(?P<entries>(?:[ ]{4}.*\n?|\n)+)", re.MULTILINE)
"""Pattern of the section of a docstring that describes the fields."""

ENTRY = re.compile(r"^[ ]{4}(?P<name>\w+): (?P<text>.*(?:\n[ ]{8}.*)*)", re.MULTILINE)
"""Pattern of one field of that section. Further lines of the field are indented deeper."""

OTHER_NAMES = {
    "chain": "model",
    "dim": "dimensions",
    "dims": "dimensions",
    "output_dimension": "dimensions",
    "output_dimensions": "dimensions",
    "limit": "k",
    "n_results": "k",
    "top_k": "k",
    "where": "filter",
}
"""Names that other services, or other routes of this service, have for a field. They are refused with a hint: to ignore
them would change an answer silently.

`/v1/embeddings` takes a chain in `model`, as `ENCODER+CHAIN`.
"""

UNKNOWN_FIELD = "unknown_field"
"""Type of pydantic's error for a field that the schema does not have; `field` in its context is the name."""


def _fail_fast(schema: Any) -> Any:
    """Return a copy of pydantic's core schema in which each list and dict stops validating at its first wrong entry."""
    if isinstance(schema, list | tuple):
        return type(schema)(_fail_fast(part) for part in schema)
    if not isinstance(schema, dict):
        return schema
    parts = {key: _fail_fast(part) for key, part in schema.items()}
    return parts | {"fail_fast": True} if schema.get("type") in ("list", "dict") else parts


def read_field_descriptions(model: type, none: str = "null") -> dict[str, str]:
    """Read the description of each field of a class, by name, from the `Attributes:` section of its docstring.

    Sections of base classes are read too. The description in a subclass replaces an inherited one. The word `None` in
    descriptions is replaced by `none`, and the first letter becomes a capital.

    Args:
        model: the class.
        none: word for a missing value, by default `null` as in JSON.
    """
    descriptions: dict[str, str] = {}
    for base in reversed(model.__mro__):
        section = ATTRIBUTES.search(inspect.cleandoc(base.__dict__.get("__doc__") or ""))
        for entry in ENTRY.finditer(section["entries"] if section else ""):
            text = re.sub(r"\bNone\b", none, " ".join(entry["text"].split()))
            descriptions[entry["name"]] = text[0].upper() + text[1:]
    return descriptions


def find_field(name: str, fields: Collection[str]) -> str | None:
    """Find the field that an unknown name seems to mean: a synonym of other services, or the most similar, or None."""
    synonym = OTHER_NAMES.get(name.lower())
    return synonym if synonym in fields else find_similar(name, fields)


class JsonObject(BaseModel):
    """Base class of JSON objects with strict types. Null means the default, and unknown fields raise an error."""

    model_config = ConfigDict(strict=True, extra="forbid")

    known: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields, computed once for each class, because every request is compared with them."""

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Set `known` to the names of the subclass's fields."""
        cls.known = frozenset(cls.model_fields)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Build pydantic's core schema, changed so that lists and dicts stop validating at the first wrong entry.

        If every error is collected, pydantic takes half a kilobyte for each: 2 MB of `{"inputs": [0, 0, …]}` took 900
        MB and 3 s.
        """
        checked: CoreSchema = _fail_fast(handler(source))
        return checked

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Build the JSON schema, with the field descriptions from the docstring."""
        reference = handler(core_schema)
        json_schema = handler.resolve_ref_schema(reference)
        if "description" in json_schema:
            json_schema["description"] = ATTRIBUTES.sub("", json_schema["description"]).strip()
        for name, text in read_field_descriptions(cls).items():
            if name in json_schema.get("properties", {}):
                json_schema["properties"][name].setdefault("description", text)
        return reference

    @model_validator(mode="before")
    @classmethod
    def drop_nulls_and_refuse_unknown(cls, content: Any) -> Any:
        """Remove the fields of a request that are null, so that their defaults apply, and raise for unknown fields.

        Content that is not an object is returned unchanged. An unknown field that is null is ignored.

        Raises:
            PydanticCustomError: of type `UNKNOWN_FIELD`, for an unknown field that is not null.
        """
        if not isinstance(content, dict):
            return content
        fields = {name: value for name, value in content.items() if value is not None}
        if not fields.keys() <= cls.known:
            cls.refuse_unknown(fields.keys() - cls.known)
        return fields

    @classmethod
    def refuse_unknown(cls, unknown: Collection[str]) -> None:
        """Raise `PydanticCustomError` for the alphabetically first unknown field, with the field it seems to mean."""
        name = min(unknown)
        raise PydanticCustomError(UNKNOWN_FIELD, "unknown field; {advice}", {"field": name, "advice": cls.advise(name)})

    @classmethod
    def advise(cls, unknown: str) -> str:
        """Return the end of a message about an unknown field: the similar field, or the names of all fields."""
        field = cls.find_field(unknown)
        return f"did you mean {field}?" if field else f"the fields are {', '.join(cls.model_fields)}"

    @classmethod
    def find_field(cls, unknown: str) -> str | None:
        """Find the field that an unknown one seems to mean. None if it resembles no field."""
        return find_field(unknown, cls.known)
