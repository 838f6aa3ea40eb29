import numpy as np
import pytest

from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.datasets.records import Search
from lathe.training.digests import digest
from lathe.training.evaluation.encoders import TextVectors, text_key
from lathe.training.evaluation.methods import CONTROL_METHOD, Method, hash_chain
from lathe.training.evaluation.run import Request
from lathe.training.evaluation.suites import Suite
from lathe.transforms import Chain, parse_steps

WIDTH = 24
ENCODER = "f" * 32


@pytest.fixture(scope="module")
def rows():
    found = np.random.default_rng(0).normal(0.4, 1, size=(400, WIDTH)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def nested(rows):
    """Return the method of a fitted nested chain."""
    chain = Chain(parse_steps("geopres:12,nested=true,steps=5")).fit(rows)
    return EvaluatedMethod("mine@1", "chain", chain, "k", ENCODER)


def test_hash_chain_differs_for_different_maps_of_equal_tensors(rows, tmp_path):
    keys = []
    for number, (steps, normalize) in enumerate([("r2", True), ("r2", False), ("rand:seed=1", True), ("r2", True)]):
        Chain(parse_steps(steps), normalize).fit(rows).save(tmp_path / str(number))
        keys.append(hash_chain(Chain.load(tmp_path / str(number))))
    assert len(set(keys[:3])) == 3 and keys[3] == keys[0]


def test_hash_chain_is_the_same_in_memory_on_disk_and_every_time(nested, tmp_path):
    nested.chain.save(tmp_path / "saved")
    loaded = Chain.load(tmp_path / "saved")
    assert {hash_chain(chain) for chain in [nested.chain] * 20 + [loaded]} == {hash_chain(nested.chain)}
    assert hash_chain(nested.chain) == digest(loaded.metadata["tensors_sha256"], True, loaded.specs())[:32]


def test_a_chain_is_also_rescored_on_searches_only_if_its_vectors_are_smaller(rows, nested):
    for steps in ("r2", "int8", "truncation:12"):
        chain = Method("one@1", "chain", Chain(parse_steps(steps)).fit(rows), "k")
        names = [method.name for method in Request(Suite("", "", ()), [], Path(), chains=[chain]).list_methods()]
        assert ("one@1 rescored" in names) == (steps != "r2")
    rescored = nested.with_rescoring()
    assert [rescored.suits_task(kind) for kind in ("Retrieval", "Reranking", "STS")] == [True, False, False]
    assert nested.suits_task("STS")
    assert rescored.key != nested.key


def test_unsuited_reason_names_another_encoder_or_other_dimensions(nested):
    assert nested.unsuited_reason(ENCODER, WIDTH) is None
    assert nested.unsuited_reason("e" * 32, WIDTH) == "it was fitted on another encoder's vectors"
    anyones = replace(nested, encoder_fingerprint=None)
    assert anyones.unsuited_reason("e" * 32, WIDTH) is None
    assert anyones.unsuited_reason(ENCODER, 384) == "it takes vectors 24 wide, these are 384"
    assert CONTROL_METHOD.unsuited_reason(ENCODER, 384) is None


def test_stored_model_returns_stored_vectors_by_prompt_through_the_chain(nested, rows):
    from mteb.types import PromptType  # seconds of import

    from lathe.training.datasets.mteb_tasks import build_task
    from lathe.training.evaluation.model import Collector, StoredModel

    prompts = {"query": "find: "}
    about = {"task_metadata": build_task(LAYOUTS["pairs"], "x", "en", Search({}, {}, {})).metadata}
    asking, answering = about | {"prompt_type": PromptType.query}, about | {"prompt_type": PromptType.document}
    collector = Collector(prompts)
    collector.encode([{"text": ["a"]}, {"text": ["b", "a"]}], **asking)
    collector.encode([{"text": ["a"]}], **answering)
    assert list(collector.asked) == [("query", "a"), ("query", "b"), (None, "a")]

    store = TextVectors([text_key(text, prompts.get(name)) for name, text in collector.asked], rows[:3])
    raw = StoredModel(store, prompts)
    cut = StoredModel(store, prompts, None, nested.chain, 6)
    np.testing.assert_array_equal(raw.encode([{"text": ["b"]}, {"text": ["a"]}], **asking), rows[[1, 0]])
    np.testing.assert_array_equal(raw.encode([{"text": ["a"]}], **answering), rows[[2]])
    np.testing.assert_array_equal(cut.encode([{"text": ["a", "b"]}], **asking), nested.chain.transform(rows[:2], 6))
    assert raw.encode([{"text": []}], **asking).shape == (0, WIDTH)
