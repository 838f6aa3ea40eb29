"""`lathe calibrate`: what it prints gives, in PostgreSQL, in Qdrant and in Python, the probabilities of its model."""

import json

import numpy as np
import pytest
from qdrant_client import QdrantClient, models

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_MODEL, EncoderSpec
from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from lathe.transforms.relevance import ScoreModel, measure_auroc
from tests.service.conftest import find_library_files

QUERY = "(SELECT embedding FROM items LIMIT 1)"


@pytest.fixture(scope="module")
def halves():
    """First halves of 400 paragraphs, and the second halves, of which only every other one is a row."""
    modules = (
        "argparse codecs configparser datetime difflib doctest imaplib inspect ipaddress mailbox optparse os pathlib"
    )
    modules += " pickletools shutil smtplib subprocess tarfile threading turtle typing"
    files = find_library_files(*modules.split())
    texts = (text.split() for text in extract_paragraphs(text for file in files for text in read_docstrings(file)))
    found = {
        " ".join(words[: len(words) // 2]): " ".join(words[len(words) // 2 :]) for words in texts if len(words) > 15
    }
    return [*found][:400], [*found.values()][:400]


@pytest.fixture(scope="module")
def vectors(halves):
    """Unit vectors of the rows and of all queries."""
    encoder = Encoder(EncoderSpec("all-MiniLM-L6-v2", DEFAULT_MODEL, dtype="float32"), "cpu")
    return encoder.encode(halves[1][::2]).vectors, encoder.encode(halves[0]).vectors


@pytest.fixture(scope="module")
def folder(halves, vectors, tmp_path_factory):
    """Files of the rows, of 240 unjudged queries, and of 160 judged ones, half of which have an answer."""
    folder = tmp_path_factory.mktemp("files")
    first, second = halves
    write = {"rows": [{"text": text} for text in second[::2]], "log": [{"text": text} for text in first[160:]]}
    write["judged"] = [{"query": first[n], "document": second[n]} for n in range(160)]
    for name, rows in write.items():
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    np.save(folder / "rows.npy", vectors[0])
    np.save(folder / "log.npy", vectors[1][160:])
    return folder


@pytest.fixture
def calibrate(run, folder):
    """Return a function that runs the command with JSON, and returns the object."""

    def command(*options, source="rows.jsonl"):
        status, out, err = run("calibrate", "--source", folder / source, *options, "--json")
        assert status == 0, err
        return json.loads(out)

    return command


@pytest.fixture
def judged(folder):
    return ["--queries", folder / "log.jsonl", "--pairs", folder / "judged.jsonl"]


def predict(found, scores):
    """Return the probabilities of the model that was found, for the scores of one search."""
    return ScoreModel(np.array(found["coefficients"])).predict_proba(np.array([scores]))[0]


def test_the_printed_function_tells_right_from_wrong_hits_and_says_how_well(calibrate, judged, vectors):
    found = calibrate(*judged)
    assert (found["rows"], found["kind"], found["figures"]["queries"]) == (200, "queries", 80)
    assert found["sentence"] in " ".join(found["function"].replace("\n# ", " ").split())
    auroc, low, _ = found["figures"]["auroc"]
    assert low > 0.5 and found["in_an_index"]["auroc"][0] > auroc - 0.1

    namespace = {}
    exec(found["function"], namespace)
    rows, queries = vectors
    cosines = queries @ rows.T
    scores = -np.sort(-cosines, axis=1)[:, :50]
    probabilities = np.array([namespace["find_probabilities"](row) for row in scores])
    np.testing.assert_allclose(probabilities, [predict(found, row) for row in scores], atol=1e-6)
    right = (np.arange(len(queries)) % 2 == 0) & (cosines.argmax(1) == np.arange(len(queries)) // 2)
    assert measure_auroc(probabilities[:, 0], right) > 0.65
    assert np.isnan(namespace["find_probabilities"](scores[0, :9])).all()


@pytest.mark.parametrize(
    ("operator", "score"), [("<=>", "1 - distance"), ("<#>", "-distance"), ("<->", "1 - distance ^ 2 / 2")]
)
def test_the_printed_sql_cuts_hits_of_a_table_by_their_probability(
    calibrate, judged, vectors, database, operator, score
):
    found = calibrate(*judged, "--for", "pgvector")
    rows, queries = vectors
    database.execute("CREATE TABLE items (id bigint PRIMARY KEY, embedding vector(384))")
    with database.cursor() as cursor, cursor.copy("COPY items FROM STDIN") as copy:
        for number, row in enumerate(rows.tolist()):
            copy.write_row((number, str(row)))
    comment, statement = found["function"].split("WITH hits")
    assert found["sentence"].split()[0] in comment and operator in comment
    statement = "WITH hits" + statement.replace("1 - distance", score).replace("<=>", operator)

    cut = 0
    for query in queries[:40].tolist():
        searched = statement.replace(QUERY, f"'{query}'")
        hits = database.execute(searched.replace(">= 0.5", ">= 0")).fetchall()
        assert len(hits) == 50 and [hit[1] for hit in hits] == sorted((hit[1] for hit in hits), reverse=True)
        expected = predict(found, [hit[1] for hit in hits])
        np.testing.assert_allclose([hit[2] for hit in hits], expected, atol=1e-6)
        kept = database.execute(searched.replace(">= 0.5", ">= 0.2")).fetchall()
        assert kept == [hit for hit in hits if hit[2] >= 0.2]
        cut += not kept
    assert 0 < cut < 40

    database.execute("DELETE FROM items WHERE id >= 9")
    assert not database.execute(statement.replace(">= 0.5", ">= 0")).fetchall()


def test_the_printed_program_cuts_hits_of_qdrant_by_their_probability(calibrate, judged, vectors):
    found = calibrate(*judged, "--for", "qdrant")
    rows, queries = vectors
    client = QdrantClient(":memory:")
    client.create_collection("items", models.VectorParams(size=384, distance=models.Distance.COSINE))
    client.upload_collection("items", 3 * rows)
    namespace = {}
    exec(found["function"], namespace)
    for query in queries[:20].tolist():
        hits = namespace["search"](client, "items", query, min_probability=0)
        assert len(hits) == 50
        np.testing.assert_allclose([p for _, p in hits], predict(found, [point.score for point, _ in hits]), atol=1e-6)
        kept = namespace["search"](client, "items", query, min_probability=0.2)
        assert [point.id for point, _ in kept] == [point.id for point, probability in hits if probability >= 0.2]


def test_vectors_are_calibrated_as_the_texts_that_they_are_of_also_through_a_chain(calibrate, folder, home):
    for chain in ("none", "compact"):
        texts = calibrate("--queries", folder / "log.jsonl", "--chain", chain)
        given = calibrate("--queries", folder / "log.npy", "--chain", chain, source="rows.npy")
        np.testing.assert_allclose(texts["coefficients"], given["coefficients"], rtol=1e-3)
        assert texts["figures"] is None and texts["sentence"].startswith("Not judged")
    assert not [*(home / "indexes").glob("*")]


def test_without_queries_rows_search_for_rows_and_the_function_is_written_to_a_file(run, calibrate, folder, tmp_path):
    assert calibrate()["kind"] == "rows"
    status, out, err = run("calibrate", "--source", folder / "rows.jsonl", "--out", tmp_path / "probabilities.py")
    assert status == 0, err
    assert out.startswith("rows.jsonl: 200 rows calibrated with its own rows. Not judged")
    compile((tmp_path / "probabilities.py").read_text(), "probabilities.py", "exec")


def test_too_little_is_refused_in_one_line(run, folder, tmp_path):
    np.save(tmp_path / "few.npy", np.eye(59, dtype=np.float32))
    for options, said in [
        (["--source", tmp_path / "few.npy"], "at least 60 items"),
        (["--source", folder / "rows.npy", "--queries", tmp_path / "few.npy"], "59 dimensions"),
        (["--source", folder / "rows.npy", "--queries", folder / "log.jsonl"], "no encoder"),
        (["--source", folder / "rows.npy", "--base-rate", 1], "--base-rate"),
    ]:
        status, out, err = run("calibrate", *options)
        assert (status, out) == (1, "") and said in err and len(err.strip().splitlines()) == 1
