import json
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from transforms import R2, ArtifactError, Chain, GeoPres
from transforms.artifact import MANIFEST, TENSORS, read_artifact, read_manifest, write_artifact
from transforms.artifact.folder import manifest_digest


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(100, 12)


@pytest.fixture(scope="module")
def chain(rows):
    return Chain([R2(), GeoPres(6, steps=1)]).fit(rows)


@pytest.fixture
def saved(chain, tmp_path):
    chain.save(tmp_path / "chain", {"encoder": "e", "certificate": {"local_spearman": 0.931}})
    return tmp_path / "chain"


def rewrite(path, change):
    """Save anew, with digests that are right, after a change to the manifest and the tensors."""
    manifest, tensors = read_artifact(path)
    del manifest["tensors_sha256"]
    change(manifest, tensors)
    write_artifact(path.with_name("changed"), manifest, tensors)
    return path.with_name("changed")


@contextmanager
def files_limited_to(size):
    """A disk on which no file can grow beyond `size` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_artifact_is_two_files_that_hold_no_code(saved):
    assert {file.name for file in saved.iterdir()} == {MANIFEST, TENSORS}
    manifest = json.loads((saved / MANIFEST).read_text())
    assert manifest["schema_version"] == 1
    assert manifest["steps"][0] == {"kind": "r2"}
    header = int.from_bytes((saved / TENSORS).read_bytes()[:8], "little")
    names = json.loads((saved / TENSORS).read_bytes()[8 : 8 + header])
    assert set(names) - {"__metadata__"} == {"0.direction", "0.mean_norm", "0.noise_floor", "1.weight"}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_a_truncated_file_is_refused(saved, name, share):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ArtifactError):
        Chain.load(saved)


def test_tensors_with_any_bit_flipped_are_refused(saved, with_flipped_bits):
    for _ in with_flipped_bits(saved / TENSORS, 60):
        with pytest.raises(ArtifactError):
            Chain.load(saved)


def test_a_manifest_with_any_bit_flipped_is_refused_or_says_the_same(saved, with_flipped_bits):
    original, refused = read_manifest(saved), 0
    for _ in with_flipped_bits(saved / MANIFEST, 300):
        try:
            assert read_manifest(saved) == original
        except ArtifactError:
            refused += 1
    assert refused > 200


@pytest.mark.parametrize(
    "edit",
    [
        {"normalize": False},
        {"encoder": "another"},
        {"certificate": {"local_spearman": 0.999}},
        {"steps": [{"kind": "r2"}]},
        {"tensors_sha256": "0" * 64},
        {"a new key": 1},
    ],
)
def test_an_edited_manifest_is_refused(saved, edit):
    manifest = json.loads((saved / MANIFEST).read_bytes())
    (saved / MANIFEST).write_text(json.dumps(manifest | edit))
    with pytest.raises(ArtifactError, match="altered"):
        Chain.load(saved)


def test_a_manifest_that_was_only_laid_out_anew_is_the_same(saved):
    manifest = json.loads((saved / MANIFEST).read_bytes())
    (saved / MANIFEST).write_text(json.dumps(manifest, sort_keys=True, indent=7))
    assert read_manifest(saved) == manifest


@pytest.mark.parametrize("version", [2, 99, "1", None, 1.5])
def test_a_future_schema_is_refused_though_its_digest_is_right(saved, version):
    manifest = json.loads((saved / MANIFEST).read_bytes()) | {"schema_version": version}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="upgrade Lathe"):
        Chain.load(saved)


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_a_missing_file_is_refused(saved, name):
    (saved / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        Chain.load(saved)


def test_a_place_without_an_artifact_is_refused(tmp_path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "file", "empty"):
        with pytest.raises(ArtifactError, match=name):
            Chain.load(tmp_path / name)


@pytest.mark.parametrize("content", [b"[]", b"7", b"null", b'"text"', b"{}", b"\xff\xfe\x00", b'{"schema_version": 1}'])
def test_a_manifest_that_is_something_else_is_refused(saved, content):
    (saved / MANIFEST).write_bytes(content)
    with pytest.raises(ArtifactError, match="cannot be read"):
        Chain.load(saved)


@pytest.mark.parametrize(
    "steps",
    [None, 5, [], ["r2", "geopres"], {"kind": "r2"}, [{"kind": "unheard-of"}], [{"kind": "geopres"}], [["kind", "r2"]]],
)
def test_steps_that_cannot_be_built_are_refused(saved, steps):
    changed = rewrite(saved, lambda manifest, tensors: manifest.update(steps=steps))
    with pytest.raises(ArtifactError):
        Chain.load(changed)


@pytest.mark.parametrize("name", ["steps", "normalize", "input_dimensions", "output_dimensions", "tensors_sha256"])
def test_a_manifest_that_leaves_out_what_is_needed_is_refused(saved, name):
    manifest = json.loads((saved / MANIFEST).read_bytes())
    del manifest[name]
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError):
        Chain.load(saved)


TENSOR_CHANGES = {
    "one is missing": lambda tensors: tensors.pop("0.mean_norm"),
    "one is not known": lambda tensors: tensors.update({"1.bias": torch.zeros(6)}),
    "one is NaN": lambda tensors: tensors["1.weight"].fill_(torch.nan),
    "one is infinite": lambda tensors: tensors["0.mean_norm"].fill_(torch.inf),
    "one has too few outputs": lambda tensors: tensors.update({"1.weight": tensors["1.weight"][:5]}),
    "one takes another width": lambda tensors: tensors.update({"1.weight": tensors["1.weight"][:, :5]}),
    "one is a vector for a matrix": lambda tensors: tensors.update({"1.weight": tensors["1.weight"][0]}),
    "one is a matrix for a vector": lambda tensors: tensors.update({"0.direction": torch.ones(2, 12)}),
    "one is empty": lambda tensors: tensors.update({"0.direction": torch.empty(0)}),
}


@pytest.mark.parametrize("change", TENSOR_CHANGES)
def test_tensors_that_are_not_those_of_the_steps_are_refused(saved, change):
    changed = rewrite(saved, lambda manifest, tensors: TENSOR_CHANGES[change](tensors))
    with pytest.raises(ArtifactError):
        Chain.load(changed)


@pytest.mark.parametrize("name", ["input_dimensions", "output_dimensions"])
def test_sizes_that_contradict_the_tensors_are_refused(saved, name):
    changed = rewrite(saved, lambda manifest, tensors: manifest.update({name: 7}))
    with pytest.raises(ArtifactError, match="manifest says otherwise"):
        Chain.load(changed)


def test_a_saved_chain_is_never_overwritten(saved, rows, embeddings):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    with pytest.raises(ArtifactError, match="exists already"):
        Chain([R2()]).fit(embeddings(50, 12, seed=9)).save(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert list(saved.parent.iterdir()) == [saved]


def test_a_file_in_the_way_is_left_alone(chain, tmp_path):
    (tmp_path / "chain").write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        chain.save(tmp_path / "chain")
    assert (tmp_path / "chain").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "chain"]


def test_missing_parents_are_made_and_an_empty_folder_is_filled(chain, rows, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "a" / "b" / "chain", tmp_path / "empty", str(tmp_path / "text")):
        chain.save(path)
        np.testing.assert_array_equal(Chain.load(path).transform(rows), chain.transform(rows))


@pytest.mark.parametrize("limit", [0, 200, 3000])
def test_a_disk_that_is_full_leaves_nothing_behind(chain, tmp_path, limit):
    with files_limited_to(limit), pytest.raises(OSError, match="too large"):
        chain.save(tmp_path / "chain", {"note": "the tensors still fit, this does not " * 200})
    assert not list(tmp_path.iterdir())


def test_metadata_that_is_not_json_leaves_nothing_behind(chain, tmp_path):
    with pytest.raises(TypeError, match="JSON"):
        chain.save(tmp_path / "chain", {"when": object()})
    assert not list(tmp_path.iterdir())


def test_of_many_who_save_under_one_name_exactly_one_succeeds(chain, rows, tmp_path):
    def save(_):
        try:
            return chain.save(tmp_path / "chain")
        except ArtifactError:
            return None

    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(save, range(16)))
    assert sum(outcome is not None for outcome in outcomes) == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "chain"]
    np.testing.assert_array_equal(Chain.load(tmp_path / "chain").transform(rows), chain.transform(rows))


def test_a_manifest_with_the_former_name_of_out_of_domain_is_read_with_the_new_one(saved, caplog):
    corpora = {"pydoc": {"recall_at_10": 0.5}}
    manifest = json.loads((saved / MANIFEST).read_bytes())
    manifest["certificate"] = {"foreign": corpora, "compared_to": {"chain": "x@1", "foreign": corpora}}
    manifest["provenance"] = {"gates": {"foreign.pydoc.recall_at_10": 0.4, "recall_at_10": 0.5}}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    written = json.dumps(manifest).encode()
    (saved / MANIFEST).write_bytes(written)
    with caplog.at_level("INFO"):
        found = [read_manifest(saved) for _ in range(2)][1]
    assert found["certificate"]["out_of_domain"] == found["certificate"]["compared_to"]["out_of_domain"] == corpora
    assert found["provenance"]["gates"] == {"out_of_domain.pydoc.recall_at_10": 0.4, "recall_at_10": 0.5}
    assert "foreign" not in json.dumps(found)
    assert len(caplog.records) == 1 and "out_of_domain" in caplog.text
    assert (saved / MANIFEST).read_bytes() == written


@pytest.mark.parametrize("content", [[], {"foreign": 1, "compared_to": 3}, {"compared_to": {"foreign": []}}, None, "x"])
def test_a_certificate_of_any_shape_is_read_without_an_error_of_the_renaming(saved, content):
    manifest = json.loads((saved / MANIFEST).read_bytes()) | {"certificate": content, "provenance": {"gates": content}}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    assert "certificate" in read_manifest(saved)
