import json

import numpy as np
import pytest

from lathe.transforms import diagnose


@pytest.fixture(scope="module")
def vectors(encoder, paragraphs):
    """Return vectors of 120 real texts, two of them equal."""
    rows = encoder.encode(paragraphs[:120]).vectors
    rows[5] = rows[4]
    return rows


def test_diagnose_json_equals_the_diagnose_function(run, vectors, tmp_path):
    np.save(tmp_path / "rows.npy", vectors)
    status, out, _ = run("diagnose", "--source", tmp_path / "rows.npy", "--json")
    assert status == 0
    found = json.loads(out)
    assert found == {"before": diagnose(vectors)}
    assert found["before"]["duplicate_rows"] == 1


def test_diagnose_encodes_texts_and_also_reports_on_a_chains_outputs(run, paragraphs, tmp_path):
    (tmp_path / "some.txt").write_text("\n".join(paragraphs[:60]))
    status, out, _ = run("diagnose", "--source", tmp_path / "some.txt", "--chain", "debias", "--json")
    assert status == 0
    found = json.loads(out)
    assert found["before"]["n"] == found["after"]["n"] == 60
    assert found["before"]["norms"]["unit"] == 1
    assert found["after"]["dimensions"] == 384


def test_diagnose_prints_a_table_before_and_after_a_chain_with_the_spectrum_as_bars(run, vectors, tmp_path):
    np.save(tmp_path / "rows.npy", vectors)
    status, out, _ = run("diagnose", "--source", tmp_path / "rows.npy", "--chain", "compact")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].split() == ["before", "after"]
    assert ["dimensions", "384", "128"] in [line.split() for line in lines]
    assert "share of the variance by direction, after" in lines
    assert sum("█" in line for line in lines) > 10


def test_diagnose_prints_one_line_for_nan_a_missing_file_other_dimensions_or_an_unknown_chain(run, vectors, tmp_path):
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
