"""The code of the page about LanceDB does what the page says, in an environment that has LanceDB."""

import json
import re
import shutil

import numpy as np
import pytest

from lathe.training.deciding.places.databases import PLACES, write_commands
from lathe.training.deciding.requests import AdviceRequest
from lathe.transforms import Chain, parse_steps
from tests.docs.blocks import ROOT, blocks_of
from tests.exports.environments import run_script

PACKAGES = [
    "lancedb==0.40.0",
    "lance-namespace==0.13.0",
    "lance-namespace-urllib3-client==0.13.0",
    "deprecation==2.1.0",
    "overrides==7.7.0",
]
PAGE = "docs/how-to/use-lancedb.md"

BEFORE = """
import sys

sys.path.insert(0, sys.argv[1])
import lancedb
import numpy as np
import pyarrow as pa

vectors = np.load("vectors.npy")


def rows(start, stop):
    full = pa.FixedSizeListArray.from_arrays(vectors[start:stop].ravel(), vectors.shape[1])
    return pa.table({"id": np.arange(start, stop), "vector": full})


def encode(text):
    return vectors[:1]


lancedb.connect("lance").create_table("articles", rows(0, 1500))
"""

AFTER = """
reduced = matrix(table.to_arrow().sort_by("id")["reduced"].combine_chunks())
np.save("reduced.npy", reduced)
table.add(rows(1500, 2000))
assert table.count_rows("reduced IS NULL") == 500
"""

ENGINE = """
import sys

import numpy as np

from lathe.training.deciding.places.databases import PLACES
from lathe.training.deciding.places.engines import search_in_engine
from lathe.training.deciding.places.forms import FormSearch, StoredForm
from lathe.training.deciding.places.recall import find_nearest, measure_recall

vectors = np.load("vectors.npy")
search = FormSearch(vectors[:-200], vectors[-200:], sys.argv[1])
nearest = find_nearest(search.score(StoredForm("float32", 384)))
for candidate in PLACES["lancedb"].list_candidates(384):
    if sys.argv[1] in candidate.metrics and candidate.form.element != "pq" and not candidate.form.steps:
        found, _ = search_in_engine("lancedb", candidate, 1, search)
        recalls = [found, measure_recall(find_nearest(search.score(candidate.form)), nearest)]
        assert abs(recalls[0] - recalls[1]) < 0.04, (candidate.words, recalls)
        print(candidate.words, recalls)
"""

AFTER_SECOND_RUN = """
assert table.count_rows("reduced IS NULL") == 0
np.save("all.npy", matrix(table.to_arrow().sort_by("id")["reduced"].combine_chunks()))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder with vectors and with the chain that the page names."""
    made = tmp_path_factory.mktemp("lancedb")
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(2000, 384)) * np.linspace(2, 0.1, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    np.save(made / "vectors.npy", vectors)
    Chain(parse_steps("pca:128")).fit(vectors).save(made / "small")
    return made


def test_page_adds_reduced_vectors_searches_them_and_continues_with_rows_added_later(folder):
    blocks = [block.text for block in blocks_of((ROOT / PAGE).read_text(), PAGE) if block.language == "python"]
    script = "\n".join([BEFORE, *blocks, AFTER, blocks[0], AFTER_SECOND_RUN])
    ran = run_script(script, ROOT, packages=PACKAGES, folder=folder)
    assert ran.returncode == 0, ran.stderr
    expected = Chain.load(folder / "small").transform(np.load(folder / "vectors.npy"))
    assert np.abs(np.load(folder / "reduced.npy") - expected[:1500]).max() < 1e-6
    assert np.abs(np.load(folder / "all.npy") - expected).max() < 1e-6
    found = json.loads(ran.stdout)
    vectors = np.load(folder / "vectors.npy")[:1500]
    true = np.argsort(-(vectors @ vectors[0]))[:10].tolist()
    assert found[0] == 0
    assert len(set(found) & set(true)) >= 9


@pytest.mark.parametrize("metric", ["cosine", "l2", "ip"])
def test_its_engine_finds_what_advice_computes_for_each_candidate(folder, metric):
    ran = run_script(ENGINE, metric, packages=PACKAGES, folder=folder)
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout.splitlines()) == (2 if metric == "ip" else 4)


@pytest.mark.parametrize("candidate", [*PLACES["lancedb"].list_candidates(384)][1:6], ids=lambda one: one.words)
@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_lines_of_advice_find_the_nearest_rows(folder, candidate, metric):
    shutil.rmtree(folder / "lance", ignore_errors=True)
    vectors = np.load(folder / "vectors.npy")
    if candidate.form.steps:
        name = re.sub(r",center=none|\W", "", candidate.form.steps)
        shutil.rmtree(folder / name, ignore_errors=True)
        Chain(parse_steps(candidate.form.steps), normalize=metric == "cosine").fit(vectors).save(folder / name)
    lines = "\n".join(
        write_commands(AdviceRequest(source="vectors.npy", place="lancedb", metric=metric), candidate, 4, 384)
    )
    script = lines.partition("python - <<'END'\n")[2].removesuffix("END")
    ran = run_script(script, packages=PACKAGES, folder=folder)
    assert ran.returncode == 0, ran.stderr
    found = [int(number) for number in re.findall(r"\d+", ran.stdout)]
    true = np.argsort(-(vectors @ vectors[0]))[:10].tolist()
    least = 3 if candidate.form.element == "pq" else 6  # product codes of noise find little
    assert found[0] == 0 and len(set(found) & set(true)) >= least
