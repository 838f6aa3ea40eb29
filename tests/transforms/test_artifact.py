import json
import resource
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from lathe.transforms import R2, ArtifactError, Chain, GeoPres
from lathe.transforms.artifact import MANIFEST, TENSORS, read_manifest
from lathe.transforms.artifact.folder import manifest_digest


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


@contextmanager
def files_limited_to(size):
    """Let the system refuse any file larger than `size` bytes, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_an_artifact_is_a_json_manifest_and_a_safetensors_file(saved):
    assert {file.name for file in saved.iterdir()} == {MANIFEST, TENSORS}
    manifest = json.loads((saved / MANIFEST).read_text())
    assert manifest["schema_version"] == 1
    assert manifest["steps"][0] == {"kind": "r2"}
    header = int.from_bytes((saved / TENSORS).read_bytes()[:8], "little")
    names = json.loads((saved / TENSORS).read_bytes()[8 : 8 + header])
    assert set(names) - {"__metadata__"} == {"0.direction", "0.mean_norm", "0.noise_floor", "1.weight"}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_loading_refuses_a_truncated_file(saved, name, share):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(ArtifactError):
        Chain.load(saved)


def test_loading_refuses_a_tensor_file_with_one_bit_flipped(saved, with_flipped_bits):
    for _ in with_flipped_bits(saved / TENSORS, 60):
        with pytest.raises(ArtifactError):
            Chain.load(saved)


def test_a_manifest_with_one_bit_flipped_is_refused_or_reads_as_the_same_content(saved, with_flipped_bits):
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
def test_loading_refuses_an_edited_manifest_as_altered(saved, edit):
    manifest = json.loads((saved / MANIFEST).read_bytes())
    (saved / MANIFEST).write_text(json.dumps(manifest | edit))
    with pytest.raises(ArtifactError, match="altered"):
        Chain.load(saved)


def test_a_manifest_reformatted_with_other_whitespace_and_key_order_is_accepted(saved):
    manifest = json.loads((saved / MANIFEST).read_bytes())
    (saved / MANIFEST).write_text(json.dumps(manifest, sort_keys=True, indent=7))
    assert read_manifest(saved) == manifest


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"schema_version": version}, "upgrade Lathe") for version in (2, 99, "1", None, 1.5)]
    + [
        ({name: ...}, "cannot be|altered")
        for name in ("steps", "normalize", "input_dimensions", "output_dimensions", "tensors_sha256")
    ],
)
def test_loading_refuses_another_schema_version_and_a_manifest_without_a_required_key(saved, change, reason):
    manifest = json.loads((saved / MANIFEST).read_bytes()) | change
    manifest = {name: value for name, value in manifest.items() if value is not ...}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (saved / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=reason):
        Chain.load(saved)


@pytest.mark.parametrize("name", [MANIFEST, TENSORS])
def test_loading_refuses_an_artifact_with_a_missing_file_and_names_the_file(saved, name):
    (saved / name).unlink()
    with pytest.raises(ArtifactError, match=name):
        Chain.load(saved)


def test_loading_refuses_a_path_that_is_missing_a_file_or_an_empty_folder(tmp_path):
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "file", "empty"):
        with pytest.raises(ArtifactError, match=name):
            Chain.load(tmp_path / name)


@pytest.mark.parametrize("content", [b"[]", b"7", b"null", b'"text"', b"{}", b"\xff\xfe\x00", b'{"schema_version": 1}'])
def test_loading_refuses_a_manifest_that_is_not_a_json_object_with_the_required_keys(saved, content):
    (saved / MANIFEST).write_bytes(content)
    with pytest.raises(ArtifactError, match="cannot be read"):
        Chain.load(saved)


def test_saving_over_an_existing_artifact_is_refused_and_leaves_its_files_unchanged(saved, embeddings):
    before = {file.name: file.read_bytes() for file in saved.iterdir()}
    with pytest.raises(ArtifactError, match="exists already"):
        Chain([R2()]).fit(embeddings(50, 12, seed=9)).save(saved)
    assert {file.name: file.read_bytes() for file in saved.iterdir()} == before
    assert list(saved.parent.iterdir()) == [saved]


def test_saving_to_a_path_where_a_file_exists_is_refused_and_leaves_the_file_unchanged(chain, tmp_path):
    (tmp_path / "chain").write_text("mine")
    with pytest.raises(ArtifactError, match="exists already"):
        chain.save(tmp_path / "chain")
    assert (tmp_path / "chain").read_text() == "mine"
    assert list(tmp_path.iterdir()) == [tmp_path / "chain"]


def test_saving_creates_missing_parent_folders_and_accepts_an_empty_folder(chain, rows, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "a" / "b" / "chain", tmp_path / "empty", str(tmp_path / "text")):
        chain.save(path)
        np.testing.assert_array_equal(Chain.load(path).transform(rows), chain.transform(rows))


@pytest.mark.parametrize("limit", [0, 200, 3000])
def test_saving_to_a_full_disk_raises_oserror_and_leaves_no_file(chain, tmp_path, limit):
    with files_limited_to(limit), pytest.raises(OSError, match="too large"):
        chain.save(tmp_path / "chain", {"note": "the tensors still fit, this does not " * 200})
    assert not list(tmp_path.iterdir())


def test_saving_metadata_that_is_not_json_raises_type_error_and_leaves_no_file(chain, tmp_path):
    with pytest.raises(TypeError, match="JSON"):
        chain.save(tmp_path / "chain", {"when": object()})
    assert not list(tmp_path.iterdir())


def test_of_16_concurrent_saves_to_the_same_path_exactly_one_succeeds(chain, rows, tmp_path):
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
