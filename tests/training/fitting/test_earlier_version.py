import json

import numpy as np
import pytest
from pydantic import ValidationError

from lathe.training.errors import FitError
from lathe.training.fitting.earlier_version import EarlierVersion
from lathe.training.fitting.fit import add_rows, fit_new_chain
from lathe.training.fitting.requests import AddRows, NewFit
from lathe.training.fitting.split import split_heldout
from lathe.transforms import ArtifactError, Chain, StepError, parse_steps
from lathe.transforms.artifact import TENSORS
from lathe.transforms.progress import no_progress

QUALITIES = {"local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"}
SIDES = {"mean_norm", "isoscore", "bytes_per_vector"}


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Write files of vectors without an encoder and return their folder."""
    folder = tmp_path_factory.mktemp("vectors")
    for seed, (name, width) in enumerate([("0", 16), ("1", 16), ("2", 16), ("narrow", 12)]):
        rows = np.random.default_rng(seed).normal(size=(300, width)) * np.linspace(2, 0.5, width) + 0.3
        np.save(folder / f"{name}.npy", rows.astype(np.float32))
    return folder


def fit(source, workspace, steps=None, earlier=None, encoder=None, **request):
    """Fit a chain and return the result, its certificate, and the vectors fitted on and held out as arrays."""
    if earlier is None:
        specs = [step.spec() for step in parse_steps(steps)]
        asked = NewFit(name="name", steps=specs, source=str(source), **({"keep_moments": True} | request))
        running = fit_new_chain(asked, encoder, workspace, no_progress, "lathe fit")
    else:
        asked = AddRows(name="name", source=str(source), add_to=earlier.ref, **request)
        running = add_rows(asked, earlier, encoder, workspace, no_progress, "lathe fit")
    with running as fitted:
        rows, heldout = split_heldout(fitted.encoded.hashes, asked.seed)
        stored = np.array(fitted.encoded.vectors)
        return fitted, fitted.certificate, stored[rows], stored[heldout]


def save_and_read(fitted, folder, version=1):
    """Save a fitted chain and read it as an `EarlierVersion`."""
    fitted.chain.save(folder / str(version), statistics=fitted.statistics)
    return EarlierVersion.read(f"name@{version}", Chain.load(folder / str(version)), folder / str(version))


def test_adding_rows_twice_nearly_equals_a_fit_on_all_rows_and_is_certified_against_the_version_before(
    vectors, workspace, tmp_path
):
    chain, certificate, rows, _ = fit(vectors / "0.npy", workspace, "r2,pca:8")
    versions, all_rows = [(chain.chain, certificate)], [rows]
    for number in (1, 2):
        earlier = save_and_read(chain, tmp_path, number)
        chain, certificate, rows, heldout = fit(vectors / f"{number}.npy", workspace, earlier=earlier)
        versions.append((chain.chain, certificate))
        all_rows.append(rows)
    whole = Chain(parse_steps("r2,pca:8")).fit(np.concatenate(all_rows))
    np.testing.assert_allclose(chain.chain[0].direction, whole[0].direction, atol=1e-5)
    spans = [np.linalg.qr(found[1].weight.double().numpy().T)[0] for found in (versions[0][0], chain.chain, whole)]
    old, new = (float((np.linalg.svd(span.T @ spans[2])[1] ** 2).mean()) for span in spans[:2])
    assert new > 0.995 > old

    assert [certificate["n_fit"] for _, certificate in versions] == np.cumsum([len(one) for one in all_rows]).tolist()
    assert certificate["n_heldout"] == len(heldout)
    assert any("held out of what was added to name@2" in warning for warning in certificate["warnings"])
    compared = certificate["compared_to"]
    assert set(compared) == QUALITIES | SIDES | {"chain", "sizes", "out_of_domain"} and compared["chain"] == "name@2"
    expected = versions[1][0].floats(heldout)
    assert compared["mean_norm"]["after"] == pytest.approx(float(np.linalg.norm(expected.mean(0))), abs=1e-5)
    json.dumps(certificate, allow_nan=False)
    told = [version.metadata["provenance"] for version, _ in versions]
    assert "added_to" not in told[0]
    assert told[2]["added_to"] == [
        {"chain": f"name@{n + 1}", "source": f"{n}.npy", "rows": 300, "rows_digest": told[n]["rows_digest"]}
        for n in range(2)
    ]


def test_a_warning_names_a_trained_step_and_the_version_whose_map_it_keeps(vectors, workspace, tmp_path):
    earlier = save_and_read(fit(vectors / "0.npy", workspace, "r2,geopres:8,steps=20")[0], tmp_path)
    fitted, certificate, _, _ = fit(vectors / "1.npy", workspace, earlier=earlier)
    assert any("geopres keeps the map of name@1: it is trained on rows" in said for said in certificate["warnings"])
    assert fitted.chain.metadata["provenance"]["training"] == earlier.chain.metadata["provenance"]["training"] != []


def test_a_version_without_moments_or_with_damaged_ones_is_refused(vectors, workspace, tmp_path):
    chain = fit(vectors / "0.npy", workspace, "r2", keep_moments=False)[0]
    with pytest.raises(FitError, match=r"name@1 carries no moments.*--keep-moments"):
        save_and_read(chain, tmp_path / "without")
    earlier = save_and_read(fit(vectors / "0.npy", workspace, "r2")[0], tmp_path)
    path = tmp_path / "1" / TENSORS
    path.write_bytes(path.read_bytes()[:-4] + b"abcd")
    with pytest.raises(ArtifactError, match="altered"):
        EarlierVersion.read("name@1", earlier.chain, tmp_path / "1")


def test_rows_of_another_encoder_or_other_dimensions_are_refused_before_encoding(
    vectors, workspace, counting_hashes, tmp_path
):
    encoder, texts = counting_hashes(), tmp_path / "texts.txt"
    texts.write_text("\n".join(f"text {n}" for n in range(20)))
    earlier = save_and_read(fit(vectors / "0.npy", workspace, "r2")[0], tmp_path)
    with pytest.raises(FitError, match=r"fitted on vectors without an encoder, these are of hashing"):
        fit(texts, workspace, earlier=earlier, encoder=encoder)
    assert encoder.texts == []
    with pytest.raises(StepError, match="16 dimensions"):
        fit(vectors / "narrow.npy", workspace, earlier=earlier)


def test_what_steps_are_fitted_on_is_refused_when_rows_are_added():
    with pytest.raises(ValidationError, match="add_to"):
        AddRows(name="name", source="new.npy", add_to="name@1", targets="any")
