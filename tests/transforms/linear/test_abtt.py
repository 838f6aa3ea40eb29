import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lathe.transforms import ABTT, Chain, InputError, StepError, parse_steps

WIDTH = 24


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(400, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(60, WIDTH, seed=1)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def formula(rows, fresh, directions, literal=False):
    """Compute the algorithm in float64: y = v − μ − Σ(…·u)u over the top directions of the covariance."""
    rows, fresh = rows.astype(np.float64), fresh.astype(np.float64)
    mean = rows.mean(0)
    top = np.linalg.eigh(np.cov(rows.T))[1][:, ::-1][:, :directions]
    centred = fresh - mean
    return centred - ((fresh if literal else centred) @ top) @ top.T


@pytest.mark.parametrize("directions", [1, 3, 15])
@pytest.mark.parametrize("literal", [False, True])
def test_abtt_matches_the_papers_formula_in_float64(rows, fresh, directions, literal):
    expected = formula(rows, fresh, directions, literal)
    plain = ABTT(directions, literal, renormalize=False).fit(rows)
    np.testing.assert_allclose(plain.transform(fresh), expected, atol=1e-5)
    np.testing.assert_allclose(ABTT(directions, literal).fit(rows).transform(fresh), unit(expected), atol=1e-4)


def test_abtt_removes_the_top_singular_vectors_of_the_centred_rows(rows):
    right = np.linalg.svd(rows - rows.mean(0, dtype=np.float64), full_matrices=False)[2][:3]
    removed = ABTT(3).fit(rows).removed.double().numpy()
    np.testing.assert_allclose(np.abs((removed * right).sum(1)), 1, atol=1e-9)
    np.testing.assert_allclose(removed @ removed.T, np.eye(3), atol=1e-6)


def test_abtt_outputs_are_orthogonal_to_the_removed_directions(rows, fresh):
    abtt = ABTT(3).fit(rows)
    np.testing.assert_allclose(abtt.transform(fresh) @ abtt.removed.numpy().T, 0, atol=1e-6)


def test_literal_abtt_differs_from_the_default_by_a_constant_along_the_removed_directions(rows, fresh):
    """The constant is minus the projection of the mean onto the removed directions."""
    literal, plain = (ABTT(3, form, renormalize=False).fit(rows) for form in (True, False))
    removed = literal.removed.double().numpy()
    constant = -(rows.mean(0, dtype=np.float64) @ removed.T) @ removed
    difference = literal.transform(fresh) - plain.transform(fresh)
    np.testing.assert_allclose(difference, np.broadcast_to(constant, difference.shape), atol=1e-5)
    assert np.linalg.norm(constant) > 0.01


def test_literal_and_default_abtt_agree_on_rows_whose_mean_is_zero(rows):
    opposites = np.concatenate([rows, -rows])
    literal, plain = (ABTT(3, form).fit(opposites).transform(rows) for form in (True, False))
    np.testing.assert_allclose(literal, plain, atol=1e-5)


def test_abtt_outputs_have_norm_one_unless_renormalize_is_false(rows, fresh):
    np.testing.assert_allclose(np.linalg.norm(ABTT(2).fit(rows).transform(fresh), axis=1), 1, atol=1e-6)
    plain = ABTT(2, renormalize=False).fit(rows).transform(fresh)
    assert np.abs(np.linalg.norm(plain, axis=1) - 1).max() > 0.05


def test_abtt_without_renormalising_gives_the_fitted_rows_a_mean_of_zero(rows):
    out = ABTT(2, renormalize=False).fit(rows).transform(rows)
    np.testing.assert_allclose(out.mean(0, dtype=np.float64), 0, atol=1e-6)


def test_abtt_removes_the_largest_eigenvalues_of_the_covariance_and_keeps_the_others(rows):
    out = ABTT(4, renormalize=False).fit(rows).transform(rows)
    left = np.linalg.eigvalsh(np.cov(out.T.astype(np.float64)))
    before = np.linalg.eigvalsh(np.cov(rows.T.astype(np.float64)))
    np.testing.assert_allclose(left, np.concatenate([np.zeros(4), before[:-4]]), atol=1e-6)


@pytest.mark.parametrize(
    ("width", "expected"),
    [(2, 1), (8, 1), (100, 1), (149, 1), (151, 2), (300, 3), (384, 4), (768, 8), (1024, 10), (4096, 41)],
)
def test_abtt_removes_one_direction_per_hundred_dimensions_and_at_least_one_by_default(width, expected):
    assert ABTT().removed_count(width) == expected == max(1, round(width / 100))
    assert ABTT(7).removed_count(width) == 7


def test_abtt_with_default_directions_removes_two_of_160_dimensions(embeddings):
    rows = embeddings(300, 160)
    assert ABTT().fit(rows).removed.shape == (2, 160)
    np.testing.assert_array_equal(ABTT().fit(rows).transform(rows), ABTT(2).fit(rows).transform(rows))


def test_abtt_does_not_normalise_vectors_before_removing_directions(rows, fresh):
    lengths = 10 ** np.random.default_rng(0).uniform(-1, 1, size=(len(rows), 1))
    np.testing.assert_allclose(
        ABTT(2, renormalize=False).fit(rows * lengths).transform(fresh), formula(rows * lengths, fresh, 2), atol=1e-4
    )


@settings(max_examples=30, deadline=None, derandomize=True)
@given(literal=st.booleans(), renormalize=st.booleans(), directions=st.integers(1, 20), normalize=st.booleans())
def test_folded_abtt_chain_is_one_step_with_the_same_outputs(rows, fresh, literal, renormalize, directions, normalize):
    chain = Chain([ABTT(directions, literal, renormalize)], normalize).fit(rows)
    np.testing.assert_allclose(chain.fold().transform(fresh), chain.transform(fresh), atol=1e-5)
    assert len(chain.fold().transforms) == 1


def test_abtt_refuses_more_directions_than_the_rows_vary_in_and_names_the_maximum(rows):
    with pytest.raises(InputError, match="abtt needs 5 directions .* these 5 rows have 4: .* at most 4"):
        ABTT(5).fit(rows[:5])
    ABTT(4).fit(rows[:5])


@pytest.mark.parametrize("width", [1, 2, 3])
def test_abtt_refuses_to_remove_as_many_directions_as_there_are_dimensions(width):
    with pytest.raises(StepError, match=f"abtt removes 3 directions: it needs vectors of more dimensions than {width}"):
        ABTT(3).fit(np.random.default_rng(0).normal(size=(9, width)))
    with pytest.raises(StepError, match="abtt removes 1 directions"):
        ABTT().fit(np.ones((9, 1)))


def test_abtt_step_text_takes_directions_as_its_first_value():
    (step,) = parse_steps("abtt:3,literal=true")
    assert (step.directions, step.literal, step.renormalize) == (3, True, True)
