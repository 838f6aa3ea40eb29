import json

import numpy as np
import pytest
from pydantic import ValidationError

from lathe.training.errors import FitError
from lathe.training.fitting.earlier_version import EarlierVersion
from lathe.training.fitting.fit import add_rows, fit_new_chain
from lathe.training.fitting.requests import AddRows, NewFit
from lathe.training.fitting.split import split_heldout
from lathe.training.sources.docstrings import read_docstring_paragraphs
from lathe.transforms import ArtifactError, Chain, StepError, parse_steps
from lathe.transforms.artifact import TENSORS
from lathe.transforms.progress import no_progress

QUALITIES = {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"}
SIDES = {"mean_norm", "isoscore", "bytes_per_vector"}


@pytest.fixture(scope="module")
def months(tmp_path_factory):
    """Write three files of different real English texts, one for each month, and return their paths."""
    found = read_docstring_paragraphs()
    folder = tmp_path_factory.mktemp("months")
    paths = []
    for month in range(3):
        texts = [found[i] for i in np.linspace(month * 5, len(found) - 20 + month * 5, 150).astype(int)]
        paths.append(folder / f"{month}.jsonl")
        paths[-1].write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return paths


def fit(source, encoder, workspace, steps=None, earlier=None, **request):
    """Fit a chain and return the result, its certificate, and the vectors fitted on and held out as arrays."""
    if earlier is None:
        specs = [step.spec() for step in parse_steps(steps)]
        asked = NewFit(name="name", steps=specs, source=str(source), **request)
        running = fit_new_chain(asked, encoder, workspace, no_progress, "lathe fit")
    else:
        asked = AddRows(name="name", source=str(source), add_to=earlier.ref, **request)
        running = add_rows(asked, earlier, encoder, workspace, no_progress, "lathe fit")
    with running as fitted:
        rows, heldout = split_heldout(fitted.encoded.hashes, asked.seed)
        vectors = np.array(fitted.encoded.vectors)
        return fitted, fitted.certificate, vectors[rows], vectors[heldout]


def save_and_read(fitted, folder, version):
    """Save a fitted chain and read it as an `EarlierVersion`."""
    fitted.chain.save(folder / str(version), statistics=fitted.statistics)
    return EarlierVersion.read(f"name@{version}", Chain.load(folder / str(version)), folder / str(version))


@pytest.fixture(scope="module")
def added(months, brief_encoder, workspace, tmp_path_factory):
    """Fit a chain on one month and add two. Return all versions, the rows of each fit and the last held-out rows."""
    folder = tmp_path_factory.mktemp("chains")
    chain, certificate, rows, _ = fit(months[0], brief_encoder, workspace, "r2,pca:24", keep_moments=True)
    versions, all_rows = [(chain.chain, certificate)], [rows]
    for number, month in enumerate(months[1:], 1):
        earlier = save_and_read(chain, folder, number)
        chain, certificate, rows, heldout = fit(month, brief_encoder, workspace, earlier=earlier)
        versions.append((chain.chain, certificate))
        all_rows.append(rows)
    return versions, all_rows, heldout


@pytest.mark.trial
def test_adding_rows_twice_nearly_equals_a_fit_on_all_rows(added):
    versions, rows, heldout = added
    whole = Chain(parse_steps("r2,pca:24")).fit(np.concatenate(rows))
    chain = versions[-1][0]
    np.testing.assert_allclose(chain[0].direction, whole[0].direction, atol=1e-6)
    spans = [np.linalg.qr(found[1].weight.double().numpy().T)[0] for found in (versions[0][0], chain, whole)]
    old, new = (float((np.linalg.svd(span.T @ spans[2])[1] ** 2).mean()) for span in spans[:2])
    assert new > 0.995 > old


def test_n_fit_counts_old_and_new_rows_and_only_new_rows_are_held_out(added):
    versions, rows, heldout = added
    assert [certificate["n_fit"] for _, certificate in versions] == np.cumsum([len(found) for found in rows]).tolist()
    assert versions[-1][1]["n_heldout"] == len(heldout)
    assert any("held out of what was added to name@2" in warning for warning in versions[-1][1]["warnings"])


def test_the_certificate_compares_with_the_old_version_on_the_same_held_out_rows(added):
    versions, _, heldout = added
    compared = versions[2][1]["compared_to"]
    assert set(compared) == QUALITIES | SIDES | {"chain", "sizes", "out_of_domain"}
    assert compared["chain"] == "name@2" and compared["out_of_domain"].keys() == {"pydoc"}
    expected = versions[1][0].floats(heldout)
    assert compared["mean_norm"]["after"] == pytest.approx(float(np.linalg.norm(expected.mean(0))), abs=1e-5)
    assert "compared_to" not in versions[0][1]
    json.dumps(versions[2][1], allow_nan=False)


def test_provenance_lists_the_versions_that_rows_were_added_to_oldest_first(added):
    versions, _, _ = added
    told = [chain.metadata["provenance"] for chain, _ in versions]
    assert [about["source"] for about in told] == ["0.jsonl", "1.jsonl", "2.jsonl"]
    assert "added_to" not in told[0]
    assert told[2]["added_to"] == [
        {"chain": f"name@{n + 1}", "source": f"{n}.jsonl", "rows": 150, "rows_digest": told[n]["rows_digest"]}
        for n in range(2)
    ]


def test_the_artifact_of_an_updated_chain_holds_no_text(added, months, tmp_path):
    added[0][-1][0].save(tmp_path / "chain")
    content = b"".join(file.read_bytes() for file in (tmp_path / "chain").iterdir())
    for month in months:
        for line in month.read_text().splitlines():
            assert json.loads(line)["text"][:30].encode() not in content


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Write files of vectors without an encoder and return their folder."""
    folder = tmp_path_factory.mktemp("vectors")
    for seed, (name, width) in enumerate([("old", 16), ("new", 16), ("narrow", 12)]):
        rows = np.random.default_rng(seed).normal(size=(300, width)).astype(np.float32)
        np.save(folder / f"{name}.npy", rows + np.float32(0.3))
    return folder


def test_a_warning_names_a_trained_step_and_the_version_whose_map_it_keeps(vectors, workspace, tmp_path):
    old = fit(vectors / "old.npy", None, workspace, "r2,geopres:8,steps=20", keep_moments=True)[0]
    earlier = save_and_read(old, tmp_path, 1)
    fitted, certificate, _, _ = fit(vectors / "new.npy", None, workspace, earlier=earlier)
    assert any("geopres keeps the map of name@1: it is trained on rows" in said for said in certificate["warnings"])
    assert fitted.chain.metadata["provenance"]["training"] == earlier.chain.metadata["provenance"]["training"] != []


def test_moments_that_no_step_can_use_are_not_stored_and_the_certificate_warns(vectors, workspace):
    fitted, certificate, _, _ = fit(vectors / "old.npy", None, workspace, "geopres:8,steps=5", keep_moments=True)
    assert fitted.statistics.moments == {}
    assert any("no moments are kept" in said and "geopres" in said for said in certificate["warnings"])


def test_a_version_without_moments_is_refused_and_the_message_names_the_option(vectors, workspace, tmp_path):
    chain = fit(vectors / "old.npy", None, workspace, "r2")[0]
    with pytest.raises(FitError, match=r"name@1 carries no moments.*--keep-moments"):
        save_and_read(chain, tmp_path, 1)


def test_damaged_stored_moments_are_refused(vectors, workspace, tmp_path):
    chain = fit(vectors / "old.npy", None, workspace, "r2", keep_moments=True)[0]
    earlier = save_and_read(chain, tmp_path, 1)
    path = tmp_path / "1" / TENSORS
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    with pytest.raises(ArtifactError, match="altered"):
        EarlierVersion.read("name@1", earlier.chain, tmp_path / "1")


def test_rows_of_another_encoder_or_of_none_are_refused_before_encoding(
    vectors, workspace, months, counting_hashes, tmp_path
):
    encoder = counting_hashes()
    without_encoder = fit(vectors / "old.npy", None, workspace, "r2", keep_moments=True)[0]
    with pytest.raises(FitError, match=r"fitted on vectors without an encoder, these are of hashing"):
        fit(months[0], encoder, workspace, earlier=save_and_read(without_encoder, tmp_path, 1))
    assert encoder.texts == []
    hashed = fit(months[0], encoder, workspace, "r2", keep_moments=True)[0]
    with pytest.raises(FitError, match=r"fitted on vectors of hashing .*, these are without an encoder"):
        fit(vectors / "new.npy", None, workspace, earlier=save_and_read(hashed, tmp_path, 2))


def test_added_vectors_of_other_dimensions_are_refused(vectors, workspace, tmp_path):
    chain = fit(vectors / "old.npy", None, workspace, "r2", keep_moments=True)[0]
    with pytest.raises(StepError, match="16 dimensions"):
        fit(vectors / "narrow.npy", None, workspace, earlier=save_and_read(chain, tmp_path, 1))


@pytest.mark.parametrize("field", ["targets", "pairs", "queries", "steps", "bytes", "normalize", "keep_moments"])
def test_what_steps_are_fitted_on_is_refused_when_rows_are_added(field):
    with pytest.raises(ValidationError, match="add_to"):
        AddRows(name="name", source="new.npy", add_to="name@1", **{field: "any"})


def test_adding_rows_to_a_loaded_version_equals_adding_them_to_the_one_in_memory(vectors, workspace, tmp_path):
    old = fit(vectors / "old.npy", None, workspace, "r2,pca:8", keep_moments=True)[0]
    loaded = fit(vectors / "new.npy", None, workspace, earlier=save_and_read(old, tmp_path, 1))[0]
    at_hand = fit(
        vectors / "new.npy", None, workspace, earlier=EarlierVersion("name@1", old.chain, old.statistics.moments)
    )[0]
    assert loaded.chain == at_hand.chain
