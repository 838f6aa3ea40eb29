"""`lathe chains compare`: two chains on the rows of a source."""

import json

import numpy as np
import pytest

from lathe.service.cli.compare import format_comparison
from tests.helpers import require_one_line


@pytest.fixture
def vectors(run, tmp_path, home):
    """Fit a chain of 4 and one of 24 dimensions on vectors of no encoder, and return the file of other vectors."""
    generator = np.random.default_rng(0)
    rows = (generator.normal(size=(700, 48)) * np.geomspace(1, 0.1, 48) + 0.3).astype(np.float32)
    np.save(tmp_path / "fit.npy", rows[:400])
    np.save(tmp_path / "other.npy", rows[400:])
    for name, size in (("small", 4), ("large", 24)):
        if not (home / "chains" / name).exists():
            status, _, err = run("fit", "--name", name, "--steps", f"r2,pca:{size}", "--source", tmp_path / "fit.npy")
            assert status == 0, err
    return tmp_path / "other.npy"


def test_compare_says_which_chain_finds_more_of_the_raw_neighbours(run, vectors):
    status, out, _ = run("chains", "compare", "small", "large", "--source", vectors)

    assert status == 0
    assert "small@1" in out and "large@1 finds more of them: large@1 less small@1 is +" in out
    assert "on 300 rows." in out


def test_compare_prints_all_figures_as_json(run, vectors):
    status, out, _ = run(
        "chains", "compare", "large@1", "large@1", "--source", vectors, "--rows", "100", "-k", "5", "--json"
    )

    found = json.loads(out)
    assert status == 0 and (found["rows"], found["k"], found["bytes_per_vector"]["first"]) == (100, 5, 96)
    assert found["agreement_at_k"]["value"] == 1 and found["raw_recall_at_k"]["difference"]["value"] == 0
    assert "The difference is within its interval" in format_comparison(found)


def test_texts_are_encoded_with_the_encoder_of_the_chains(run, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"the {word} of number {n}\n" for n in range(20) for word in ("lathe", "mill")))

    status, out, _ = run("chains", "compare", "compact", "debias", "--source", texts)

    assert status == 0 and "compact@1" in out and "on 40 rows." in out


def test_chains_that_cannot_be_compared_are_refused_in_one_line(run, vectors, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("".join(f"a text of number {n}\n" for n in range(40)))
    for first, second, source, words in [
        ("small", "nothing", vectors, "nothing"),
        ("small", "compact", vectors, "48"),
        ("small", "large", texts, "name a source of vectors"),
    ]:
        require_one_line(run("chains", "compare", first, second, "--source", source), words)
