import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import ledoit_wolf_shrinkage
from sklearn.decomposition import PCA as Reference

from lathe.transforms import ABTT, PCA, R2, Chain, InputError, Moments, StepError, Whitening, parse_steps
from lathe.transforms.linear.whitening import compute_shrinkage_weight

WIDTH = 16
EXACT = {"epsilon": 0, "renormalize": False}


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(500, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(60, WIDTH, seed=1)


def spectrum_of(rows, ddof=1):
    """Return the mean, the variances and the directions (rows) by falling variance, in float64."""
    rows = np.asarray(rows, np.float64)
    values, vectors = np.linalg.eigh(np.cov(rows.T, ddof=ddof))
    return rows.mean(0), values[::-1], vectors[:, ::-1].T


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def in_the_sign_of(found, expected):
    return expected * np.sign((found * expected).sum(0))


@pytest.mark.parametrize("k", [1, 5, WIDTH])
def test_pca_whitening_equals_scikit_learns_whitened_pca(rows, fresh, k):
    reference = Reference(n_components=k, whiten=True, svd_solver="full").fit(rows.astype(np.float64))
    out = Whitening(k, **EXACT).fit(rows).transform(fresh)
    np.testing.assert_allclose(out, in_the_sign_of(out, reference.transform(fresh)), atol=1e-4)


def test_zca_whitening_is_the_symmetric_root_of_the_inverse_covariance(rows, fresh):
    mean, values, directions = spectrum_of(rows)
    root = directions.T @ np.diag(values**-0.5) @ directions
    whitening = Whitening(form="zca", **EXACT).fit(rows)
    np.testing.assert_allclose(whitening.weight, root, atol=1e-4)
    np.testing.assert_allclose(whitening.weight, whitening.weight.T, atol=1e-6)
    np.testing.assert_allclose(whitening.transform(fresh), (fresh - mean) @ root, atol=1e-4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(power=st.floats(0, 2), epsilon=st.floats(1e-6, 10), relative=st.booleans(), form=st.sampled_from(["pca", "zca"]))
def test_whitening_power_and_epsilon_match_their_formula(rows, fresh, power, epsilon, relative, form):
    mean, values, directions = spectrum_of(rows)
    ridge = epsilon * values.mean() if relative else epsilon
    weight = np.diag((values + ridge) ** (-power / 2)) @ directions
    weight = directions.T @ weight if form == "zca" else weight
    whitening = Whitening(None, form, power, epsilon, relative, renormalize=False).fit(rows)
    out, expected = whitening.transform(fresh), (fresh - mean) @ weight.T
    expected = in_the_sign_of(out, expected) if form == "pca" else expected
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("rcond", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("form", ["pca", "zca"])
def test_whitening_drops_directions_whose_variance_is_below_rcond(rows, fresh, rcond, form):
    mean, values, directions = spectrum_of(rows)
    kept = values > rcond * values[0]
    whitening = Whitening(form=form, rcond=rcond, **EXACT).fit(rows)
    if form == "pca":
        out = whitening.transform(fresh)
        assert out.shape == (60, WIDTH)
        assert not out[:, ~kept].any()
        assert not kept.any() or np.abs(out[:, kept]).min(0).all()
        np.testing.assert_allclose(np.cov(whitening.transform(rows)[:, kept].T), np.eye(kept.sum()), atol=1e-4)
    else:
        expected = directions[kept].T @ np.diag(values[kept] ** -0.5) @ directions[kept]
        np.testing.assert_allclose(whitening.weight, expected, atol=1e-4)


def test_whitening_rcond_drops_directions_even_with_an_epsilon(rows):
    _, values, _ = spectrum_of(rows)
    both = Whitening(rcond=0.2, epsilon=0.1, renormalize=False).fit(rows).weight.norm(dim=1).numpy()
    expected = np.where(values > 0.2 * values[0], (values + 0.1 * values.mean()) ** -0.5, 0)
    np.testing.assert_allclose(both, expected, rtol=1e-4)


def test_whitening_with_rcond_zero_drops_only_directions_without_variance(rows, fresh):
    flat = rows.copy()
    flat[:, 3] = 0.25
    out = Whitening(rcond=0, **EXACT).fit(flat).transform(flat).astype(np.float64)
    assert not out[:, -1].any()
    np.testing.assert_allclose(np.cov(out[:, :-1].T), np.eye(WIDTH - 1), atol=1e-4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000), n=st.integers(3, 80), d=st.integers(2, 12), offset=st.floats(-100, 100), data=st.data()
)
def test_ledoit_wolf_weight_of_merged_moments_equals_scikit_learns_on_all_rows(seed, n, d, offset, data):
    rng = np.random.default_rng(seed)
    rows = rng.standard_t(4, size=(n, d)) @ rng.normal(size=(d, d)) + offset
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=4)))
    merged = Moments()
    for part in np.split(rows, cuts):
        merged.merge(Moments.from_vectors(part))
    assert compute_shrinkage_weight(merged) == pytest.approx(ledoit_wolf_shrinkage(rows), abs=1e-8)


def test_whitening_shrinkage_mixes_the_variances_with_their_mean(rows, fresh):
    mean, values, directions = spectrum_of(rows, ddof=0)
    for shrinkage in (0.25, 1.0, "ledoit-wolf"):
        weight = ledoit_wolf_shrinkage(rows.astype(np.float64)) if shrinkage == "ledoit-wolf" else shrinkage
        shrunk = (1 - weight) * values + weight * values.mean()
        zca = directions.T @ np.diag(shrunk**-0.5) @ directions
        whitening = Whitening(form="zca", shrinkage=shrinkage, **EXACT).fit(rows)
        np.testing.assert_allclose(whitening.weight, zca, atol=1e-4)


def test_zca_whitening_to_k_directions_keeps_the_dimensions_and_has_rank_k(rows, fresh):
    mean, values, directions = spectrum_of(rows)
    whitening = Whitening(4, form="zca", **EXACT).fit(rows)
    expected = directions[:4].T @ np.diag(values[:4] ** -0.5) @ directions[:4]
    np.testing.assert_allclose(whitening.weight, expected, atol=1e-4)
    out = whitening.transform(rows).astype(np.float64)
    assert out.shape == (500, WIDTH)
    spread = np.linalg.eigvalsh(np.cov(out.T))
    np.testing.assert_allclose(spread[-4:], 1, atol=1e-4)
    np.testing.assert_allclose(spread[:-4], 0, atol=1e-6)


def test_pca_whitening_is_nested_with_smaller_whitenings_as_prefixes_and_zca_is_not(rows, fresh):
    whole = Chain([Whitening(epsilon=0)]).fit(rows)
    assert whole.nested
    assert not Chain([Whitening(form="zca")]).nested
    for size in (1, 4, 11):
        smaller = Chain([Whitening(size, epsilon=0)]).fit(rows)
        kept = np.linalg.norm(smaller.transform(fresh), axis=1) > 0
        cut = whole.transform(fresh, dimensions=size)
        np.testing.assert_allclose(cut[kept], smaller.transform(fresh)[kept], atol=1e-4)


STARTS = [
    ("r2", 1),
    ("r2,normalize,mc", 1),
    ("r2,r2", 2),
    ("abtt:3", 3),
    ("r1,abtt:2,r2", 3),
    (f"whitening:{WIDTH - 4},form=zca", 4),
]


@pytest.mark.parametrize(("steps", "missing"), STARTS)
@pytest.mark.parametrize("form", ["pca", "zca"])
def test_whitening_is_refused_after_steps_that_zero_directions_and_the_error_names_what_works(steps, missing, form):
    message = f"leave {missing} directions .*whitening:{WIDTH - missing} or fewer.* rcond, or shrinkage"
    for dimensions in (None, WIDTH - missing + 1):
        with pytest.raises(StepError, match=message):
            Chain([PCA(WIDTH), *parse_steps(steps), Whitening(dimensions, form)])


@pytest.mark.parametrize("form", ["pca", "zca"])
def test_whitening_after_a_whitening_that_dropped_directions_by_rcond_is_refused(form):
    with pytest.raises(StepError, match="without variance"):
        Chain([PCA(WIDTH), R2(), Whitening(form=form, rcond=1e-5), Whitening()])


def test_whitening_after_literal_abtt_without_renormalising_is_refused(rows):
    """Such an ABTT leaves its removed directions without variance."""
    abtt = ABTT(2, literal=True, renormalize=False)
    spread = np.linalg.eigvalsh(np.cov(abtt.fit(rows).transform(rows).T.astype(np.float64)))
    np.testing.assert_allclose(spread[:2], 0, atol=1e-9)
    with pytest.raises(StepError, match="leave 2 directions without variance"):
        Chain([ABTT(2, literal=True, renormalize=False), Whitening()])


@pytest.mark.parametrize(
    "parameters",
    [
        {"rcond": 1e-5},
        {"shrinkage": 0.1},
        {"shrinkage": "ledoit-wolf"},
        {"epsilon": 1e-3},
        {"power": 0},
        {"dimensions": 8},
    ],
    ids=str,
)
def test_whitening_after_r2_is_accepted_with_any_parameter_that_handles_the_zeroed_direction(rows, parameters):
    chain = Chain([R2(), Whitening(**parameters)]).fit(rows)
    out = chain.transform(rows)
    np.testing.assert_allclose(np.linalg.norm(out, axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(chain.fold().transform(rows), out, atol=1e-5)


def test_whitening_without_epsilon_refuses_a_constant_column_and_the_default_accepts_one(rows):
    flat = rows.copy()
    flat[:, 3] = 0.25
    with pytest.raises(InputError, match=f"whitening needs {WIDTH} directions .* have {WIDTH - 1}"):
        Whitening(epsilon=0).fit(flat)
    Whitening(WIDTH - 1, epsilon=0).fit(flat)
    out = Whitening().fit(flat).transform(rows)
    assert np.isfinite(out).all()


@pytest.mark.parametrize("form", ["pca", "zca"])
@pytest.mark.parametrize("dimensions", [None, 5])
def test_whitening_without_renormalising_inverts_to_the_projection_on_its_kept_directions(
    rows, fresh, form, dimensions
):
    whitening = Whitening(dimensions, form, renormalize=False).fit(rows)
    assert whitening.inverse_kind == ("exact" if dimensions is None else "approximate")
    mean, _, directions = spectrum_of(rows)
    kept = directions[:dimensions]
    expected = (fresh - mean) @ kept.T @ kept + mean
    np.testing.assert_allclose(whitening.inverse_transform(whitening.transform(fresh)), expected, atol=1e-4)


def test_whitening_without_shrinkage_refuses_fewer_rows_than_directions_despite_its_epsilon(embeddings):
    few = embeddings(20, 64)
    with pytest.raises(InputError, match="these 20 rows have 19: fit on more rows that differ, or ask for at most 19"):
        Whitening(50).fit(few)
    assert np.isfinite(Whitening(50, shrinkage="ledoit-wolf").fit(few).transform(few)).all()
