import numpy as np
import pytest

from lathe.training.fitting.few_rows import SAMPLED_ROWS, join_general_rows, sample_unit_rows
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.transforms import PCA
from lathe.transforms.progress import no_progress
from lathe.transforms.statistics import Gaussian, Moments


def sample(count, scales, seed):
    rows = np.random.default_rng(seed).normal(size=(count, len(scales))) * scales + 0.3
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


OWN, GENERAL = np.arange(1, 33) ** -1.0, np.arange(1, 33) ** -0.7


def test_the_weight_of_general_vectors_falls_with_the_number_of_rows_and_errors_with_it():
    general, truth = sample(2000, GENERAL, 0), np.cov(sample(50_000, OWN, 1).T)
    shares = []
    for count in (10, 40, 160, 640):
        rows = sample(count, OWN, 2)
        joined, share = join_general_rows(rows, general)
        shares.append(share)
        np.testing.assert_array_equal(joined[:1], rows[:1])
        errors = [np.linalg.norm(np.cov(fitted.T) - truth) for fitted in (joined, rows)]
        assert errors[0] < errors[1] or share < 0.05
    assert shares == sorted(shares, reverse=True) and shares[0] > 0.5 and shares[-1] < 0.2


def test_rows_that_determine_their_covariance_stay_alone():
    rows = sample(5000, OWN, 0)
    joined, share = join_general_rows(rows, sample(2000, GENERAL, 1))
    assert joined is rows and share == 0


def test_vectors_sampled_from_a_gaussian_have_its_directions_and_unit_norms():
    rows = sample(20_000, OWN, 3)
    sampled = sample_unit_rows(Gaussian.fit(Moments.from_vectors(rows)))
    assert sampled.shape == (SAMPLED_ROWS, 32)
    np.testing.assert_allclose(np.linalg.norm(sampled, axis=1), 1, atol=1e-5)
    first, second = (PCA(1).fit(vectors).weight.numpy() for vectors in (rows, sampled))
    assert abs(first @ second.T) > 0.99
    np.testing.assert_array_equal(sampled, sample_unit_rows(Gaussian.fit(Moments.from_vectors(rows))))


@pytest.mark.parametrize(
    ("count", "request_fields", "leans"),
    [
        (50, {"bytes": 24}, True),
        (50, {"steps": [{"kind": "r2"}, {"kind": "pca", "dimensions": 64}]}, True),
        (50, {"steps": [{"kind": "r2"}]}, False),
        (500, {"bytes": 24}, False),
    ],
)
def test_a_fit_of_few_texts_says_what_it_leans_on(
    tmp_path, brief_encoder, workspace, paragraphs, count, request_fields, leans
):
    """25 rows alone have fewer than 64 principal directions."""
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()) for text in paragraphs[:count]))
    asked = NewFit(name="few", source=str(tmp_path / "texts.txt"), **request_fields)
    with fit_new_chain(asked, brief_encoder, workspace, no_progress) as fitted:
        warnings = [line for line in fitted.certificate["warnings"] if "leaning" in line]
        assert len(warnings) == leans
        assert all("% on general text (pydoc:topics)" in line for line in warnings)
        assert fitted.certificate["n_fit"] <= count


def test_known_general_vectors_are_taken_instead_of_general_texts(tmp_path, brief_encoder, workspace, paragraphs):
    (tmp_path / "texts.txt").write_text("\n".join(" ".join(text.split()) for text in paragraphs[:60]))
    known = Gaussian.fit(Moments.from_vectors(brief_encoder.encode(paragraphs[60:]).vectors))
    asked = NewFit(name="few", source=str(tmp_path / "texts.txt"), bytes=24)
    with fit_new_chain(asked, brief_encoder, workspace, no_progress, general=known) as fitted:
        assert "starter chains" in fitted.certificate["warnings"][0]
