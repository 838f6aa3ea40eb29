"""Names that nothing reads are refused, with the name that they seem to mean: no misspelt request is answered 200."""

import pytest
from fastapi import APIRouter, Depends

from lathe.service.http.routing import DirectRoute
from lathe.service.settings import list_unknown_variables, read_settings

COMPATIBLE = ("/embed", "/v1/embeddings")
"""Routes in the shape of other services, whose clients may send fields that only those know."""
FILLED = {
    "name": "a", "job_id": "a", "version": "1", "dimensions": "128", "ref": "a",
}  # fmt: skip


def list_operations(description):
    """Yield path, method and operation of every operation of an OpenAPI description."""
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            yield path, method, operation


def list_bodies(schema, place=()):
    """Yield the path of keys to every object schema with fixed fields in a JSON schema, and the names of its fields."""
    for option in (schema, *schema.get("anyOf", [])):
        if "properties" in option:
            yield place, list(option["properties"])
            for name, part in option["properties"].items():
                yield from list_bodies(part, (*place, name))
        if isinstance(option.get("items"), dict):
            yield from list_bodies(option["items"], (*place, 0))


def nest(place, content):
    """Return a body with the content at a path of keys. The key 0 stands for a list with one element."""
    for key in reversed(place):
        content = [content] if key == 0 else {key: content}
    return content


def misspell(name):
    """Return names that people write for a field: a letter too few or too many, another case, a hyphen."""
    longer = [name[:-1], name.upper(), name.replace("_", "-")] if len(name) > 4 else []
    return [wrong for wrong in [*longer, name + "s"] if wrong != name]


@pytest.fixture(scope="module")
def operations(client):
    """Return all operations of the server under test."""
    return list(list_operations(client.get("/openapi.json").json()))


def test_every_field_of_every_body_is_refused_when_it_is_misspelt(lathe, operations):
    tried = 0
    for path, method, operation in operations:
        for content in operation.get("requestBody", {}).get("content", {}).values():
            for place, fields in list_bodies(content["schema"]):
                for wrong in {wrong for field in fields for wrong in misspell(field)} - set(fields):
                    answer = lathe.client.request(
                        method, path.format(**FILLED), json=nest(place, {wrong: 1}), headers=lathe.admin
                    )
                    error = answer.json()["error"]
                    named = ".".join(map(str, (*place, wrong)))
                    assert (answer.status_code, error["param"]) == (400, named), (path, wrong, error)
                    assert len(wrong) < 4 or "did you mean" in error["message"], error
                    tried += 1
    assert tried > 150


def test_names_that_other_services_have_for_a_field_are_refused(client):
    for path, body, field, meant in [
        ("/indexes/any/search", {"texts": "a", "filters": {"tenant": "b"}}, "filters", "filter"),
        ("/indexes/any/search", {"texts": "a", "top_k": 5}, "top_k", "k"),
        ("/indexes/any/search", {"texts": "a", "where": {}}, "where", "filter"),
        ("/embed", {"inputs": "a", "output_dimension": 128}, "output_dimension", "dimensions"),
        ("/v1/embeddings", {"input": "a", "dim": 128}, "dim", "dimensions"),
        ("/v1/embeddings", {"inputs": "a"}, "inputs", "input"),
        ("/embed?dimension=128", {"inputs": "a"}, "dimension", "dimensions"),
    ]:
        answer = client.post(path, json=body)
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, field), error
        assert f"did you mean {meant}?" in error["message"]


def test_a_field_that_means_nothing_known_is_refused_by_lathes_own_routes_with_a_list_of_fields(client):
    error = client.post("/reduce", json={"vectors": [], "chain": "compact", "colour": 1}).json()["error"]
    assert error["param"] == "colour" and "vectors, chain, dimensions" in error["message"]
    assert client.post("/reduce", json={"vectors": [], "chain": "compact", "colour": None}).status_code == 400


@pytest.mark.parametrize("path", COMPATIBLE)
def test_compatible_routes_ignore_other_unknown_names_and_name_them_in_a_header(client, path):
    body = {"inputs" if path == "/embed" else "input": "a text", "wait_for_model": True, "odd \n name": 1, "none": None}
    answer = client.post(f"{path}?api-version=1", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-ignored-fields"] == "odd???name, wait_for_model, api-version"
    del body["wait_for_model"], body["odd \n name"]
    assert "x-ignored-fields" not in client.post(path, json=body).headers


def test_a_header_names_at_most_twenty_ignored_fields_and_many_more_are_refused(client):
    answer = client.post("/embed", json={"inputs": "a"} | {f"{'x' * 300}{number}": 1 for number in range(1000)})
    assert answer.status_code == 200 and answer.headers["x-ignored-fields"].endswith(", ...")
    assert len(answer.headers["x-ignored-fields"]) < 1000
    answer = client.post("/embed", json={"inputs": "a"} | {f"{'x' * 300}{number}": 1 for number in range(1001)})
    assert answer.status_code == 400 and "unknown field" in answer.json()["error"]["message"]


def test_every_query_parameter_that_a_route_does_not_describe_is_refused(lathe, operations):
    tried = 0
    for path, method, _ in operations:
        if path.startswith(("/health", "/metrics", "/info", "/dashboard")) or path in (*COMPATIBLE, "/similarity"):
            continue
        answer = lathe.client.request(method, f"{path.format(**FILLED)}?colour=1", headers=lathe.admin, json={})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "colour"), path
        tried += 1
    assert tried > 25


def test_a_query_parameter_of_a_body_is_sent_back_to_the_body(client):
    answer = client.post("/embed?dimensions=128", json={"inputs": "a"})
    assert answer.status_code == 400 and "send it in the body" in answer.json()["error"]["message"]


def test_a_misspelt_setting_is_refused(monkeypatch):
    for name, meant in [("PROT", "PORT"), ("API_KEY", "API_KEYS"), ("CACHE_BYTE", "CACHE_BYTES")]:
        with monkeypatch.context() as patch:
            patch.setenv(f"LATHE_{name}", "1")
            with pytest.raises(ValueError, match=f"LATHE_{name} is not read by anything; did you mean LATHE_{meant}"):
                read_settings()


def test_variables_that_kubernetes_sets_for_a_service_are_no_misspelt_settings(monkeypatch):
    names = [f"LATHE_{name}" for name in ("SERVICE_HOST", "SERVICE_PORT", "PORT_8080_TCP", "PORT_8080_TCP_ADDR")]
    for name in names:
        monkeypatch.setenv(name, "1")
    assert set(names) <= set(list_unknown_variables())


def test_a_misspelt_step_or_parameter_is_refused(lathe):
    for step, said in [
        ({"kind": "geopress"}, "did you mean geopres?"),
        ({"kind": "geopres", "dimension": 64}, "did you mean dimensions?"),
        ({"kind": "r2", "colour": 1}, "it takes"),
    ]:
        body = {"name": "a", "steps": [step], "source": {"texts": ["a"]}}
        answer = lathe.client.post("/fit-transform", json=body, headers=lathe.admin)
        assert answer.status_code == 400 and said in answer.json()["error"]["message"]


def test_a_direct_route_refuses_dependencies_which_it_would_not_call():
    router = APIRouter(route_class=DirectRoute)

    async def answer(request, services):
        """Answer nothing."""

    with pytest.raises(ValueError, match="/any is a DirectRoute: it calls no dependencies"):
        router.post("/any", dependencies=[Depends(answer)])(answer)
