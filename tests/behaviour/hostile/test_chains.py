"""Chains from elsewhere with valid digests: what cannot be served is refused by name, on load and on promotion."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lathe.service.chains.folded_forms import ChainRef
from lathe.service.chains.resolve import ChainResolver
from lathe.service.chains.sharing import draw_recall, format_chain_card
from lathe.service.chains.version_folder import promote_with_gates
from lathe.service.codec import dump_json
from lathe.service.encoders.engine.dispatcher import build_message
from lathe.service.encoders.engine.worker import Worker
from lathe.service.encoders.live_vectors import ObservedVectors
from lathe.service.errors import convert_error
from lathe.service.monitoring.drift import Drift
from lathe.transforms.errors import ArtifactError
from tests.behaviour.hostile.conftest import Forger
from tests.service.encoders.engine.doubles import EncoderDouble
from tests.service.encoders.engine.works import whole, work_of

WIDTH = 16
CODES = "r2,codes:8"


def replace_tensor(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name])})


def set_entry(name, index, value):
    """Return a change of one entry of a tensor."""

    def change(tensors):
        tensors[name] = tensors[name].clone()
        tensors[name][index] = value

    return change


def cast_all(dtype):
    """Return a change that casts all float tensors."""

    def change(tensors):
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.to(dtype)

    return change


HOSTILE_TENSORS = {
    "bfloat16": ("r2,pca:8", cast_all(torch.bfloat16)),
    "NaN": ("pca:8", set_entry("0.weight", (0, 0), np.nan)),
    "weights of 1e30 in two steps": (
        "pca:12,pca:8",
        lambda tensors: [replace_tensor(f"{step}.weight", lambda t: t * 1e30)(tensors) for step in (0, 1)],
    ),
    "three axes": ("pca:8", replace_tensor("0.weight", lambda t: t.unsqueeze(0))),
    "a mean of one entry": ("pca:8", replace_tensor("0.mean", lambda t: t[:1])),
    "no rows": ("pca:8", replace_tensor("0.weight", lambda t: t[:0])),
    "an int8 scale of 0": ("int8", set_entry("0.scale", 0, 0.0)),
    "an int8 zero point of 1e9": ("int8", set_entry("0.zero_point", 0, 1e9)),
    "binary sizes for more dimensions": ("r2,binary", replace_tensor("1.size", lambda t: t.repeat(1000))),
    "a bit count of 255": (CODES, set_entry("1.layout", (0, 0), 255)),
    "a byte of the code of -1": (CODES, set_entry("1.layout", (1, 0), -1)),
    "a byte beyond the code": (CODES, set_entry("1.layout", (1, 0), 8)),
    "a shift of 200": (CODES, set_entry("1.layout", (2, 0), 200)),
    "bits that overlap": (CODES, replace_tensor("1.layout", lambda t: torch.tensor([[4], [0], [0]]).expand(t.shape))),
    "a layout of other coordinates": (CODES, replace_tensor("1.layout", lambda t: t[:, :2])),
    "a norm below 0": (CODES, replace_tensor("1.norm", lambda t: torch.full_like(t, -1.0))),
    "a query count below 0": (CODES, replace_tensor("1.query_count", lambda t: torch.full_like(t, -1))),
    "fewer centroids": ("product_codes:4", replace_tensor("0.centroids", lambda t: t[:, :200])),
    "columns below 0": ("truncation:8", set_entry("0.columns", 0, -1)),
    "a width of 2^40": ("truncation:8", replace_tensor("0.width", lambda t: torch.tensor(2**40))),
    "queries of bfloat16": (
        '{"query": [{"kind": "mc"}], "document": []}',
        replace_tensor("0.query_side.chain.steps.0.mean", lambda t: t.to(torch.bfloat16)),
    ),
    "queries of 1e38": (
        '{"query": [{"kind": "mc"}], "document": []}',
        replace_tensor("0.query_side.chain.steps.0.mean", lambda t: torch.full_like(t, 1e38)),
    ),
    "an unknown tensor": ("pca:8", lambda tensors: tensors.update({"0.more": torch.zeros(3)})),
    "a tensor is missing": ("pca:8", lambda tensors: tensors.pop("0.mean")),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE_TENSORS)
def test_a_chain_with_tensors_that_it_cannot_have_is_refused_by_name(what, forge, within_limits):
    steps, change = HOSTILE_TENSORS[what]
    forged = forge(steps)
    forged.change_tensors(change)
    with within_limits(), pytest.raises(ArtifactError, match=r"chains?/?.*mine/1|\bmine/1\b"):
        forged.registry.load(forged.ref)
    with pytest.raises(ArtifactError):
        promote_with_gates(forged.registry, "mine", 1, force=True)


def header(content):
    payload = content if isinstance(content, bytes) else json.dumps(content).encode()
    return len(payload).to_bytes(8, "little") + payload


ENTRY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
HOSTILE_PAYLOADS = {
    "nothing": b"",
    "a header of 20,000 tensors": header({f"t{i}": ENTRY for i in range(20_000)}),
    "a deep header": header(b"[" * 100_000),
    "a shape of 2^60": header({"0.weight": {"dtype": "F32", "shape": [2**60], "data_offsets": [0, 0]}}),
    "offsets that overlap": header(
        {f"0.{n}": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in ("weight", "mean")}
    ) + bytes(4),
    "an unknown dtype": header({"0.weight": ENTRY | {"dtype": "Q9"}}),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE_PAYLOADS)
def test_a_file_of_tensors_that_is_none_is_refused_without_reading_it_all(what, forge, within_limits):
    forged = forge()
    forged.write_payload(HOSTILE_PAYLOADS[what])
    with within_limits(), pytest.raises(ArtifactError, match="mine/1"):
        forged.registry.load(forged.ref)


def at(*path, value):
    """Return a change of one field of a manifest."""

    def change(manifest):
        for key in path[:-1]:
            manifest = manifest[key]
        manifest[path[-1]] = value

    return change


def nested(depth):
    found = []
    for _ in range(depth):
        found = [found]
    return found


HOSTILE_MANIFESTS = {
    "no steps": at("steps", value=[]),
    "65 steps": at("steps", value=[{"kind": "normalize"}] * 65),
    "an unknown kind": at("steps", 0, "kind", value="os.system"),
    "an unknown parameter": at("steps", 0, "evil", value=1),
    "dimensions of 2^50": at("steps", 1, "dimensions", value=2**50),
    "other dimensions": at("output_dimensions", value=9),
    "normalize is null": at("normalize", value=None),
    "nested is missing": lambda manifest: manifest.pop("nested"),
    "steps nested 63 deep": at("steps", 0, "x", value=nested(60)),
    "an encoder without a fingerprint": at("encoder", value={}),
    "a fingerprint that is a number": at("encoder", "fingerprint", value=5),
    "an encoder's name that is an object": at("encoder", "name", value={"a": 1}),
    "a certificate that is a text": at("certificate", value="good"),
    "recall that is a text": at("certificate", "recall_at_10", value="0.99"),
    "sizes that are no numbers": at("certificate", "sizes", value={"many": {"recall_at_10": 1}}),
    "bytes without a side": at("certificate", "bytes_per_vector", value={"after": 3}),
    "gates that are a list": at("provenance", "gates", value=["recall_at_10"]),
    "a distribution of texts": at("reference", "norms", value=["a", "b"]),
    "a spectrum that is a number": at("reference", "spectrum", value=1),
    "a name that is a list": at("name", value=["mine"]),
    "a name that leads elsewhere": at("name", value="../../evil"),
    "a field of NaN": at("certificate", "recall_at_10", value=float("nan")),
    "an integer of 400 digits": at("certificate", "n_fit", value=10**400),
    "a lone surrogate": at("certificate", "warnings", value=["\ud800"]),
    "a note nested 300 deep": at("note", value=nested(300)),
    "a megabyte of warnings": at("certificate", "warnings", value=["x" * 1_000_000]),
}  # fmt: skip


def use_everywhere(forged, rows):
    """Use a version as the routes and commands do. Return the errors, each of which must be one that is answered."""
    registry, errors = forged.registry, []

    def attempt(work):
        try:
            return work()
        except Exception as error:
            found = convert_error(error)
            assert found.status != 500, repr(error)
            errors.append(found)

    def reduce(side):
        return ChainResolver(registry).resolve_for_vectors(WIDTH, forged.ref, None, side).apply(rows)

    def describe():
        description = registry.describe(forged.ref)
        dump_json(description)
        return description

    def report_drift():
        loaded = registry.load(forged.ref)
        drift = Drift(True, 100, 0.9, registry, lambda work: bool(work() or True))
        drift.observe(ObservedVectors(None, loaded, rows))
        return dump_json(drift.report(loaded))

    for side in ("document", "query"):
        found = attempt(lambda side=side: reduce(side))
        assert found is None or np.isfinite(found).all()
    attempt(describe)
    attempt(report_drift)
    attempt(lambda: promote_with_gates(registry, "mine", 1, {"recall_at_10": 0.1}))
    attempt(lambda: registry.size_routes.serve_dimensions("mine"))
    attempt(lambda: format_chain_card(registry.manifest("mine", 1), "a/b", None))
    attempt(lambda: draw_recall(registry.manifest("mine", 1)))
    return errors


@pytest.mark.parametrize("what", HOSTILE_MANIFESTS)
def test_a_manifest_with_odd_fields_is_refused_or_served_and_never_an_unexpected_error(
    what, forge, rows, within_limits
):
    forged = forge()
    forged.change_manifest(HOSTILE_MANIFESTS[what])
    with within_limits():
        use_everywhere(forged, rows[:20])


HOSTILE_DISTRIBUTIONS = {
    "bfloat16": cast_all(torch.bfloat16),
    "NaN": set_entry("mean", 0, np.nan),
    "variances of 0": replace_tensor("variances", torch.zeros_like),
    "a mean of other dimensions": replace_tensor("mean", lambda t: t[:3]),
    "one score": replace_tensor("scores", lambda t: t[:1]),
    "scores out of order": replace_tensor("scores", lambda t: t.flip(0)),
    "no mean": lambda tensors: tensors.pop("mean"),
}


@pytest.mark.parametrize("what", HOSTILE_DISTRIBUTIONS)
def test_an_odd_fit_distribution_leaves_drift_unknown_and_the_chain_serving(what, forge, rows, within_limits):
    forged = forge()
    forged.change_distribution(HOSTILE_DISTRIBUTIONS[what])
    with within_limits():
        assert use_everywhere(forged, rows[:20]) == []
    assert isinstance(forged.registry.load(forged.ref).fit_distribution, ArtifactError)


def test_a_worker_answers_errors_for_any_chain_it_cannot_apply_or_send_and_other_requests_get_vectors(forge):
    loaded = forge("pca:8").registry.load("mine@1")
    outputs = {None: lambda rows: rows.to(torch.bfloat16), 8: lambda rows: None}

    class WorkerWithBadChains(Worker):
        def load_chain(self, ref):
            return SimpleNamespace(floats=outputs[ref["dimensions"]])

    whole_chain, short = (ChainRef(loaded.folder, loaded.digest, dimensions, True) for dimensions in (None, 8))
    works = [work_of(["a"], whole_chain), work_of(["b"], short), work_of(["c"])]
    worker = WorkerWithBadChains(EncoderDouble())
    head, arrays = worker.encode_message(worker.tokenize([build_message(whole(work)) for work in works]))
    assert [result.get("error") for result in head["results"]] == ["TypeError", "AttributeError", None]
    assert arrays[0].shape == (1, 2)


def test_embed_and_reduce_answer_errors_and_no_nulls_for_a_text_that_a_chain_maps_beyond_float32(
    lathe, add_version, real_rows
):
    """The rows that are tried on load are mapped well by these weights."""
    (vector,) = lathe.client.post("/embed", json={"inputs": ["a lathe"]}).json()

    def spoil(chain):
        chain.transforms[0].set_map(1e38 * torch.tensor([vector, vector]).sign(), torch.zeros(384))

    version = add_version("overflows", real_rows, "pca:2", spoil=spoil)
    for inputs in (["another text", "a lathe"], ["a lathe"], ["a lathe"]):  # the last one is from the cache
        for normalize in (True, False):
            body = {"inputs": inputs, "chain": f"overflows@{version}", "normalize": normalize}
            answer = lathe.client.post("/embed", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "corrupt_artifact"), answer.text
    answer = lathe.client.post("/reduce", json={"vectors": [vector], "chain": f"overflows@{version}"})
    assert answer.status_code == 400
    body = {"inputs": ["another text"], "chain": f"overflows@{version}"}
    assert np.isfinite(lathe.client.post("/embed", json=body).json()).all()


def test_requests_through_a_bad_chain_leave_the_encoders_process_alive(lathe, add_version, real_rows):
    """Its files were changed in place: the server's memory has the good chain, and the process reads the bad one."""
    engine = lathe.services.embedder.default
    version = add_version("replaced", real_rows, "r2,pca:8")
    body = {"vectors": real_rows[:1].tolist(), "chain": f"replaced@{version}"}
    assert lathe.client.post("/reduce", json=body).status_code == 200
    forged = Forger(lathe.services.registry, "replaced")
    forged.change_tensors(cast_all(torch.bfloat16))
    for number in range(5):
        body = {"inputs": [f"text {number}"], "chain": f"replaced@{version}"}
        answer = lathe.client.post("/embed", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "corrupt_artifact"), answer.text
        assert "dtype torch.bfloat16" in answer.json()["error"]["message"]
        assert lathe.client.post("/embed", json={"inputs": [f"other {number}"]}).status_code == 200
    assert engine.state == "ready"
