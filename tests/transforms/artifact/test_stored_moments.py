import gc
import json
import subprocess
import sys

import numpy as np
import pytest
import torch

from lathe.transforms import ArtifactError, Chain, parse_steps
from lathe.transforms.artifact import MANIFEST, TENSORS, FitStatistics, load_moments, read_artifact, write_artifact
from lathe.transforms.incremental import Stages


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(200, 12)


@pytest.fixture
def saved(rows, tmp_path):
    chain = Chain(parse_steps("r2,pca:6")).fit(rows)
    chain.save(tmp_path / "chain", statistics=FitStatistics(Stages.of(chain).take_moments(chain, rows)))
    return tmp_path / "chain"


def rewrite(path, change):
    manifest, tensors = read_artifact(path)
    change(manifest, tensors)
    write_artifact(path.with_name("changed"), manifest, tensors)
    return path.with_name("changed")


def test_moments_stored_in_an_artifact_load_bit_equal(saved, rows):
    chain = Chain(parse_steps("r2,pca:6")).fit(rows)
    expected, found = Stages.of(chain).take_moments(chain, rows), load_moments(saved)
    assert found.keys() == expected.keys() == {1, 2}
    for stage, moments in expected.items():
        for name, array in moments.arrays().items():
            np.testing.assert_array_equal(found[stage].arrays()[name], array)


def test_the_manifest_describes_the_stored_moments_and_the_artifact_has_no_third_file(saved):
    said = json.loads((saved / MANIFEST).read_text())["moments"]
    about = {"dimensions": 12, "rows": "unit"}
    assert said == {"count": 200, "stages": {"1": about, "2": about}}
    assert {file.name for file in saved.iterdir()} == {MANIFEST, TENSORS}


def test_a_chain_loaded_from_an_artifact_with_moments_has_equal_outputs_and_no_moments(saved, rows, tmp_path):
    loaded, plain = Chain.load(saved), Chain(parse_steps("r2,pca:6")).fit(rows)
    np.testing.assert_array_equal(loaded.transform(rows), plain.transform(rows))
    assert loaded == plain
    loaded.save(tmp_path / "again")  # without what it does not hold, nor a word of it
    assert "moments" not in Chain.load(tmp_path / "again").metadata
    assert load_moments(tmp_path / "again") == {}


def test_load_moments_of_an_artifact_without_moments_returns_an_empty_dict(rows, tmp_path):
    Chain(parse_steps("r2")).fit(rows).save(tmp_path / "plain")
    assert "moments" not in json.loads((tmp_path / "plain" / MANIFEST).read_text())
    assert load_moments(tmp_path / "plain") == {}


def test_loading_moments_or_the_chain_refuses_a_tensor_file_with_one_bit_flipped(saved, with_flipped_bits):
    for _ in with_flipped_bits(saved / TENSORS, 40):
        for read in (load_moments, Chain.load):
            with pytest.raises(ArtifactError):
                read(saved)


CHANGES = {
    "one is missing": lambda m, t: t.pop("moments.1.third"),
    "a stage is missing": lambda m, t: [t.pop(name) for name in list(t) if name.startswith("moments.2.")],
    "one is NaN": lambda m, t: t["moments.1.scatter"].fill_(torch.nan),
    "one is of another width": lambda m, t: t.update({"moments.1.mean": torch.zeros(11, dtype=torch.float64)}),
    "of other rows": lambda m, t: t.update({"moments.1.count": torch.tensor([7])}),
    "no scatter": lambda m, t: t["moments.1.scatter"].neg_(),
    "the manifest says another count": lambda m, t: m["moments"].update(count=7),
    "the manifest says something else": lambda m, t: m.update(moments=[1]),
    "the manifest names no stage": lambda m, t: m["moments"]["stages"].update(first={"dimensions": 12}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_load_moments_refuses_invalid_moments_while_the_chain_still_loads(saved, rows, change):
    changed = rewrite(saved, CHANGES[change])
    with pytest.raises(ArtifactError, match="moments"):
        load_moments(changed)
    assert Chain.load(changed).transform(rows).shape == (200, 6)


RESIDENT = """
import gc, sys
from lathe.transforms import Chain
def resident():
    gc.collect()
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmRSS")) / 1024
Chain.load(sys.argv[1])
before = resident()
chain = Chain.load(sys.argv[2])
print(resident() - before)
"""


@pytest.mark.release
def test_loading_a_chain_takes_less_than_a_quarter_of_the_memory_of_its_stored_moments(embeddings, tmp_path):
    gc.collect()
    rows = embeddings(300, 1024)
    chain = Chain(parse_steps("r2,pca:8")).fit(rows)
    chain.save(tmp_path / "plain")
    chain.save(tmp_path / "kept", statistics=FitStatistics(Stages.of(chain).take_moments(chain, rows)))
    moments_mb = (tmp_path / "kept" / TENSORS).stat().st_size / 2**20
    assert moments_mb > 16
    command = [sys.executable, "-P", "-c", RESIDENT, str(tmp_path / "plain"), str(tmp_path / "kept")]
    grown = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert grown < moments_mb / 4
