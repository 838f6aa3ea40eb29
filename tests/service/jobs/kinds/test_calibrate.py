import shutil
import sqlite3

import numpy as np
import pytest

from lathe.service.index.embedded.backup import back_up_index, restore_index
from lathe.training.sources.readers import read_docstring_paragraphs
from tests.helpers import eventually

WIDTH, TOPICS, ROWS = 32, 150, 600
"""Rows lie around topics; the last topics have queries and no rows."""


def unit(vectors):
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.fixture(scope="module")
def topics():
    return unit(np.random.default_rng(0).normal(size=(2 * TOPICS, WIDTH)))


def around(topics, noise, seed):
    rng = np.random.default_rng(seed)
    return unit(topics + noise * rng.normal(size=topics.shape) / np.sqrt(WIDTH))


@pytest.fixture(scope="module")
def rows(topics):
    return around(topics[np.arange(ROWS) % TOPICS], 0.8, 1)


@pytest.fixture(scope="module")
def log(topics):
    return around(topics, 0.8, 2)


@pytest.fixture(scope="module")
def app(start_app, tmp_path_factory):
    with start_app(home=tmp_path_factory.mktemp("home")) as app:
        yield app


class Index:
    """An index of an app."""

    def __init__(self, app, name, **settings):
        self.app = app
        self.path = f"/indexes/{name}"
        assert app.client.put(self.path, json={"chain": "none"} | settings, headers=app.admin).status_code == 200

    def post(self, operation, **body):
        return self.app.client.post(f"{self.path}/{operation}", json=body, headers=self.app.admin)

    def upsert(self, rows, first=0):
        ids = [str(first + number) for number in range(len(rows))]
        given = {"texts": rows} if isinstance(rows, list) else {"vectors": rows.tolist()}
        assert self.post("upsert", ids=ids, **given).status_code == 200

    def run(self, operation, **body):
        answer = self.post(operation, **body)
        assert answer.status_code == 202, answer.text
        job = {}

        def has_ended():
            job.update(self.app.client.get(f"/jobs/{answer.json()['job_id']}").json())
            return job["state"] in ("succeeded", "failed")

        eventually(has_ended, seconds=60)
        return job

    def calibrate(self, **body):
        job = self.run("calibrate", **body)
        assert job["state"] == "succeeded", job["error"]
        return job["result"]

    def search(self, queries, **body):
        given = {"texts": queries} if isinstance(queries, list) else {"vectors": queries.tolist()}
        answer = self.post("search", **given, **body)
        assert answer.status_code == 200, answer.text
        return answer.json()["results"]

    @property
    def calibration(self):
        return self.app.client.get(self.path).json()["calibration"]


def create(app, name, rows, **settings):
    index = Index(app, name, width=WIDTH, **settings)
    index.upsert(rows)
    return index


@pytest.fixture(scope="module")
def calibrated(app, rows, log):
    index = create(app, "calibrated", rows)
    index.calibrate(queries={"vectors": log.tolist()})
    return index


def test_queries_with_an_answer_get_higher_probabilities_than_those_without(calibrated, topics):
    queries = around(topics, 0.8, 3)
    first = np.array([hits[0]["probability"] for hits in calibrated.search(queries)])
    answered, unanswered = first[:TOPICS], first[TOPICS:]
    assert np.mean(answered[:, None] > unanswered) > 0.9
    assert ((first > 0) & (first < 1)).all()


def test_a_minimum_leaves_hits_out_and_everything_if_nothing_answers(calibrated, topics):
    queries = around(topics, 0.8, 4)
    hits = calibrated.search(queries)
    kept = calibrated.search(queries, min_probability=0.5)
    assert kept == [[hit for hit in found if hit["probability"] >= 0.5] for found in hits]
    assert [] in kept and any(kept)


def test_the_probability_does_not_depend_on_the_number_of_hits_or_of_queries(calibrated, topics):
    queries = around(topics[:5], 0.8, 5)
    many = calibrated.search(queries, k=50)
    for query, expected in zip(queries, many, strict=True):
        (alone,) = calibrated.search(query[None], k=2)
        assert [hit["id"] for hit in alone] == [hit["id"] for hit in expected[:2]]
        assert [hit["probability"] for hit in alone] == pytest.approx(
            [hit["probability"] for hit in expected[:2]], rel=1e-4
        )


def test_rescored_hits_have_a_probability(calibrated, topics):
    query = around(topics[:1], 0.8, 6)
    (plain,), (rescored,) = calibrated.search(query), calibrated.search(query, rescore=2)
    assert rescored[0]["probability"] == pytest.approx(plain[0]["probability"], abs=1e-3)


def test_an_index_calibrates_itself_from_its_rows(app, rows):
    index = create(app, "alone", rows)
    assert index.calibration is None
    result = index.calibrate()
    assert result["kind"] == "rows" and result["rows"] == ROWS and "Not judged" in result["sentence"]
    assert index.calibration == result | {"stale": False}


def test_too_few_hits_have_no_probability(app, rows):
    index = create(app, "few", rows[:100])
    index.calibrate()
    index.post("delete", ids=[str(number) for number in range(95)])
    (hits,) = index.search(rows[:1])
    assert [hit["probability"] for hit in hits] == [None] * 5
    assert index.search(rows[:1], min_probability=0.0) == [[]]


def test_many_new_rows_make_a_calibration_stale(app, rows, topics):
    index = create(app, "growing", rows)
    index.calibrate()
    index.upsert(around(topics[:100], 0.8, 7), first=ROWS)
    assert not index.calibration["stale"]
    index.upsert(around(topics[:100], 0.8, 8), first=ROWS + 100)
    assert index.calibration["stale"]
    assert any("growing" in warning for warning in app.client.get("/health").json()["warnings"])
    index.calibrate()
    assert not index.calibration["stale"]


def test_an_index_without_calibration_refuses_a_minimum(app, rows):
    index = create(app, "uncalibrated", rows[:100])
    answer = index.post("search", vectors=rows[:1].tolist(), min_probability=0.5)
    assert answer.status_code == 400
    assert "/indexes/uncalibrated/calibrate" in answer.json()["error"]["message"]
    assert "probability" not in index.search(rows[:1])[0][0]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"queries": {"vectors": [[1.0] * WIDTH] * 20}}, "at least 130"),
        ({"pairs": [{"query": "a", "document": "b"}]}, "no encoder"),
    ],
)
def test_too_little_is_refused_with_the_reason(app, rows, body, message):
    index = create(app, "refusing", rows[:100])
    job = index.run("calibrate", **body)
    assert job["state"] == "failed" and message in job["error"]
    assert index.calibration is None


def test_few_rows_and_other_metrics_are_refused(app, rows):
    job = create(app, "tiny", rows[:59]).run("calibrate")
    assert job["state"] == "failed" and "at least 60 items" in job["error"]
    answer = create(app, "euclidean", rows[:100], metric="l2").post("calibrate")
    assert answer.status_code == 409 and "cosine" in answer.json()["error"]["message"]


ENCODERS = [{"name": "all-MiniLM-L6-v2", "model": "sentence-transformers/all-MiniLM-L6-v2"}]
ENCODERS += [{"name": "shallow", "model": "sentence-transformers/all-MiniLM-L6-v2", "layer": 3}]


@pytest.fixture(scope="module")
def halves():
    """First and second halves of 400 paragraphs."""
    words = [text.split() for text in read_docstring_paragraphs() if len(text.split()) >= 24][:400]
    return [(" ".join(part[: len(part) // 2]), " ".join(part[len(part) // 2 :])) for part in words]


def measure_level(index, halves):
    """Return how far the mean probability of first hits is from the share of right ones, and their mean cosine."""
    hits = [found[0] for found in index.search([first for first, _ in halves])]
    right = np.mean([hit["metadata"]["text"] == second for hit, (_, second) in zip(hits, halves, strict=True)])
    return np.mean([hit["probability"] for hit in hits]) - right, np.mean([hit["score"] for hit in hits])


@pytest.mark.release
def test_judged_queries_and_the_log_are_used_again_when_the_encoder_changes(start_app, tmp_path_factory, halves):
    with start_app(home=tmp_path_factory.mktemp("home"), encoders=ENCODERS) as app:
        index = Index(app, "halves", text_field="text")
        # Every second query has no answer: its other half is not in the index.
        index.upsert([second for _, second in halves[::2]])

        log = list(dict.fromkeys(first for first, _ in halves[100:]))
        pairs = [{"query": first, "document": second} for first, second in halves[:80]]
        pairs += [
            {"query": first, "document": str(50 + number // 2)} for number, (first, _) in enumerate(halves[100:140])
        ]
        result = index.calibrate(queries={"texts": log}, pairs=pairs)
        assert (result["kind"], result["queries"], result["base_rate"]) == ("queries", len(log), None)
        assert result["figures"]["queries"] == 60 and result["figures"]["auroc"][0] > 0.6
        assert "AUROC" in result["sentence"]

        before = measure_level(index, halves[140:])
        job = index.run("reindex", encoder="shallow")
        assert job["state"] == "succeeded", job["error"]
        moved = index.calibration
        assert (moved["kind"], moved["queries"], moved["stale"]) == ("queries", len(log), False)
        assert moved["space_id"] != result["space_id"] and moved["figures"]["queries"] == 60
        after = measure_level(index, halves[140:])

    # Probabilities keep their level, which cosines do not: a minimum survives the change.
    (error, cosine), (error_after, cosine_after) = before, after
    assert abs(error) < 0.12 and abs(error_after) < 0.12
    assert abs(cosine_after - cosine) > 0.2


def test_a_calibration_is_part_of_the_record_like_the_items(start_app, tmp_path, rows, log):
    indexes = tmp_path / "indexes"
    with start_app(home=tmp_path, indexes_only=True) as app:
        index = create(app, "kept", rows)
        index.calibrate(queries={"vectors": log.tolist()}, base_rate=0.3)
        before = [[hit["probability"] for hit in hits] for hits in index.search(rows[:5])]
        back_up_index(indexes / "kept", tmp_path / "backup")
    restore_index(tmp_path / "backup", indexes, "restored")
    shutil.rmtree(*indexes.glob("kept/graph-*"))  # rows and graph are rebuilt

    def assert_kept(index):
        assert index.calibration["base_rate"] == 0.3
        for hits, expected in zip(index.search(rows[:5]), before, strict=True):
            assert [hit["probability"] for hit in hits] == pytest.approx(expected)

    with start_app(home=tmp_path, indexes_only=True) as app:
        index.app = app
        for name in ("kept", "restored"):
            index.path = f"/indexes/{name}"
            assert_kept(index)
        assert index.run("reindex")["state"] == "succeeded"  # a compaction
        assert_kept(index)


@pytest.mark.parametrize(
    "damage",
    [
        "model = substr(model, 2)",
        """content = replace(content, '0.3, "first_rate"', '2.0, "first_rate"')""",
        "content = '{}'",
        "content = 'x'",
        "model = 1",
    ],
)
def test_a_damaged_calibration_is_none_and_an_index_can_be_calibrated_again(start_app, tmp_path, rows, damage):
    with start_app(home=tmp_path, indexes_only=True) as app:
        index = create(app, "damaged", rows)
        index.calibrate(base_rate=0.3)
    with sqlite3.connect(tmp_path / "indexes" / "damaged" / "record.db") as db:
        db.execute(f"UPDATE calibrations SET {damage}")
    with start_app(home=tmp_path, indexes_only=True) as app:
        index.app = app
        description = app.client.get(index.path).json()
        assert description["calibration"] is None and "calibrate the index again" in " ".join(description["notes"])
        assert "probability" not in index.search(rows[:1])[0][0]
        assert index.run("reindex")["state"] == "succeeded"
        assert index.calibration["kind"] == "rows"
