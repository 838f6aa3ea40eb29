"""The OpenAPI document describes every parameter and every field of a body, with examples that are valid."""

import pytest

from lathe.service.app import create_app
from lathe.service.http import schemas
from lathe.service.index.spec import IndexRequest, ReindexRequest
from lathe.service.settings import Settings
from lathe.training.deciding.requests import AdaptRequest, AdviceRequest
from lathe.training.finetuning.requests import NewTraining
from lathe.training.fitting.requests import NewFit

BODIES = [
    schemas.EmbedBody,
    schemas.OpenAIBody,
    schemas.ReduceBody,
    schemas.PromoteBody,
    schemas.EncoderPromoteBody,
    schemas.SizeRouteBody,
    schemas.UpsertBody,
    schemas.SearchBody,
    schemas.DeleteBody,
    schemas.GetBody,
    AdaptRequest,
    AdviceRequest,
    IndexRequest,
    ReindexRequest,
    NewTraining,
    NewFit,
]


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """Return the description of each route by its method and path."""
    document = create_app(Settings(home=tmp_path_factory.mktemp("home"))).openapi()
    return {
        f"{method.upper()} {path}": call
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    }


def get_body(call):
    """Return the schema of a route's JSON body."""
    return call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})


def walk_fields(schema, path=""):
    """Yield path and schema of each field of a body, and of the objects in it."""
    for name, field in schema.get("properties", {}).items():
        yield f"{path}.{name}", field
        yield from walk_fields(field, f"{path}.{name}")
    for part in (*schema.get("anyOf", ()), schema.get("items")):
        if isinstance(part, dict):
            yield from walk_fields(part, path)


def test_every_field_of_every_body_is_described(calls):
    fields = [(call + path, field) for call in calls for path, field in walk_fields(get_body(calls[call]))]
    assert len(fields) > 120
    assert [path for path, field in fields if not field.get("description")] == []
    assert [path for path, field in fields if "None" in field["description"]] == []


def test_every_parameter_of_a_path_or_query_is_described_and_has_an_example(calls):
    parameters = [(call, one) for call in calls for one in calls[call].get("parameters", ())]
    assert len(parameters) > 30
    assert [(call, one["name"]) for call, one in parameters if not one.get("description")] == []
    assert [(call, one["name"]) for call, one in parameters if not one["schema"].get("examples")] == []


def test_every_field_of_every_body_has_an_example(calls):
    missing = [
        f"{name} {field}"
        for name, call in calls.items()
        for field in get_body(call).get("properties", {})
        if not any(field in example for example in get_body(call).get("examples", ()))
    ]
    assert missing == []


def test_examples_of_every_body_are_valid():
    for body in BODIES:
        for example in body.model_config["json_schema_extra"]["examples"]:
            request = body.model_validate(example)
            if hasattr(request, "check"):
                request.check()
