import json

import pytest

from lathe.training.errors import ExportError
from lathe.training.export.faiss_transforms import export_faiss
from lathe.training.export.folder import open_staging_folder
from lathe.training.export.onnx_graph import export_onnx
from lathe.training.export.sentence_transformers_folder import export_sentence_transformers
from lathe.transforms import PCA, Chain, certify

REFERENCE = "mine@3"
FORMATS = {
    "sentence-transformers": lambda chain, encoder, folder: export_sentence_transformers(
        chain, encoder, folder, REFERENCE
    ),
    "onnx": lambda chain, encoder, folder: export_onnx(chain, encoder, folder, REFERENCE),
    "onnx of the chain alone": lambda chain, encoder, folder: export_onnx(chain, None, folder, REFERENCE),
    "faiss": lambda chain, encoder, folder: export_faiss(chain, folder, REFERENCE),
}
QUICK = ["sentence-transformers", "onnx of the chain alone", "faiss"]
WITH_ENCODER = ["sentence-transformers", "onnx"]


@pytest.fixture(scope="module")
def chain(fitted, encoder, vectors, new_vectors, tmp_path_factory):
    """Return a chain as loaded from a registry, with all metadata."""
    path = tmp_path_factory.mktemp("artifacts") / "chain"
    made = fitted("r2,geopres:24,nested=true,steps=5")
    metadata = {
        "encoder": encoder.describe(),
        "provenance": {"rows": len(vectors)},
        "certificate": certify(made, new_vectors, n_fit=len(vectors)),
    }
    made.save(path, metadata)
    return Chain.load(path)


def read_folder(folder):
    """Return the contents of all files below a folder by relative path, None for folders."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize("format_", FORMATS)
def test_exports_refuse_a_folder_that_is_not_empty_or_a_file_and_leave_it(chain, encoder, tmp_path, format_):
    (tmp_path / "there" / "deep").mkdir(parents=True)
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = read_folder(tmp_path)
    for name in ("there", "file", "dangling"):
        with pytest.raises(ExportError, match="already exists"):
            FORMATS[format_](chain, encoder, tmp_path / name)
    assert read_folder(tmp_path) == before


@pytest.mark.parametrize("format_", WITH_ENCODER)
def test_exports_with_an_encoder_refuse_a_chain_of_another_encoder_or_other_dimensions_and_write_nothing(
    fitted, vectors, encoder, tmp_path, format_
):
    other = Chain(fitted("pca:16").transforms)
    other.metadata = {"encoder": encoder.describe() | {"fingerprint": "f" * 32}}
    narrow = Chain([PCA(8)]).fit(vectors[:, :20])
    for chain, reason in ((other, "another embedding space.*" + "f" * 32), (narrow, "20 dimensions")):
        with pytest.raises(ExportError, match=reason):
            FORMATS[format_](chain, encoder, tmp_path / "there")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format_", "steps"),
    [*((name, "autoencoder:24,steps=4") for name in FORMATS), ("faiss", "r2,flow:1,steps=2,batch=64")],
)
def test_exports_refuse_a_step_that_is_no_affine_map_by_name(fitted, encoder, tmp_path, format_, steps):
    with pytest.raises(ExportError, match="(autoencoder|flow) is not an affine map"):
        FORMATS[format_](fitted(steps), encoder, tmp_path / "there")
    assert not (tmp_path / "there").exists()


@pytest.mark.release
@pytest.mark.parametrize("format_", QUICK)
def test_a_chain_fitted_without_an_encoder_is_exported_with_a_named_encoder(fitted, encoder, tmp_path, format_):
    without_encoder = Chain(fitted("pca:16").transforms)
    without_encoder.metadata = {"encoder": None}
    assert FORMATS[format_](without_encoder, encoder, tmp_path / "there").files


@pytest.mark.parametrize(("there", "before"), [("there", []), ("new/there", []), ("there", ["there"])])
def test_open_staging_folder_leaves_only_the_folders_that_were_there_before_an_error(tmp_path, there, before):
    for name in before:
        (tmp_path / name).mkdir()
    with pytest.raises(ZeroDivisionError), open_staging_folder(tmp_path / there) as staging:
        (staging / "deep").mkdir()
        (staging / "deep/some.txt").write_text("text")
        raise ZeroDivisionError
    assert read_folder(tmp_path) == dict.fromkeys(before)


@pytest.mark.parametrize("format_", QUICK)
def test_exports_to_an_empty_and_to_a_missing_folder_are_byte_equal_and_describe_the_chain(
    chain, encoder, tmp_path, format_
):
    """They leave nothing beside the folder."""
    folders = [tmp_path / "there", tmp_path / "a/b/c"]
    folders[0].mkdir()
    for folder in folders:
        exported = FORMATS[format_](chain, encoder, folder)
        assert exported.folder == folder and exported.files
        assert all((folder / name).is_file() for name in exported.files)
    assert {path.name for path in tmp_path.iterdir()} == {"there", "a"}
    first, second = map(read_folder, folders)
    assert first.keys() == second.keys()
    assert [name for name in first if first[name] != second[name]] == []
    said = json.loads((folders[0] / "lathe.json").read_text())
    assert said["chain"] == REFERENCE
    assert said["steps"] == chain.specs()
    assert said["certificate"] == chain.metadata["certificate"] and said["certificate"]["n_heldout"]
    assert said["encoder"]["fingerprint"] == encoder.fingerprint
    assert said["provenance"] == {"rows": 250}
    assert (said["input_dimensions"], said["output_dimensions"]) == (384, 24)
    read_me = (folders[0] / "README.md").read_text()
    assert read_me.startswith(f"# {REFERENCE}\n")
    assert "r2, geopres" in read_me and "384 → 24 dimensions" in read_me
