import json

import numpy as np
import pytest

from transforms import diagnose


@pytest.fixture(scope="module")
def vectors(encoder, paragraphs):
    rows = encoder.encode(paragraphs[:120]).vectors
    rows[5] = rows[4]
    return rows


def test_vectors_are_diagnosed_as_the_library_does(run, vectors, tmp_path):
    np.save(tmp_path / "rows.npy", vectors)
    status, out, _ = run("diagnose", "--source", tmp_path / "rows.npy", "--json")
    assert status == 0
    found = json.loads(out)
    assert found == {"before": diagnose(vectors)}
    assert found["before"]["duplicate_rows"] == 1


def test_texts_are_encoded_first_and_looked_at_behind_a_chain_too(run, paragraphs, tmp_path):
    (tmp_path / "some.txt").write_text("\n".join(paragraphs[:60]))
    status, out, _ = run("diagnose", "--source", tmp_path / "some.txt", "--chain", "debias", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["before"]["n"] == found["after"]["n"] == 60
    assert found["before"]["norms"]["unit"] == 1
    assert found["after"]["dimensions"] == 384


def test_the_table_shows_both_sides_and_the_spectrum_as_bars(run, vectors, tmp_path):
    np.save(tmp_path / "rows.npy", vectors)
    status, out, _ = run("diagnose", "--source", tmp_path / "rows.npy", "--chain", "compact")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split() == ["before", "after"]
    assert ["dimensions", "384", "128"] in [line.split() for line in lines]
    assert "share of the variance by direction, after" in lines
    assert sum("█" in line for line in lines) > 10


def test_what_cannot_be_diagnosed_is_one_line(run, vectors, tmp_path):
    bad = vectors.copy()
    bad[7, 3] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    np.save(tmp_path / "narrow.npy", vectors[:, :100])
    for arguments in (
        ["--source", tmp_path / "bad.npy"],
        ["--source", tmp_path / "absent.npy"],
        ["--source", tmp_path / "narrow.npy", "--chain", "compact"],
        ["--source", tmp_path / "narrow.npy", "--chain", "nobody"],
    ):
        status, out, err = run("diagnose", *arguments)
        assert (status, out) == (1, "")
        assert err.startswith("lathe: ") and len(err.splitlines()) == 1
