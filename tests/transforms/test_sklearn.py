"""A chain as a scikit-learn transformer: scikit-learn's own checks, and what people build with it."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import estimator_checks_generator

from lathe.transforms import R2, Chain, InputError, StepError, parse_steps
from lathe.transforms.sklearn import ChainTransformer

ESTIMATORS = {
    "default": ChainTransformer(),
    "codes": ChainTransformer("r2,pca:1,int8"),
    "not normalized": ChainTransformer([{"kind": "whitening", "dimensions": 1}], normalize=False),
    "nested": ChainTransformer("r2,pca:2", dimensions=1),
}
LEFT_OUT = {"check_array_api_input": "arrays of libraries other than NumPy are not taken"}
CHECKS = [
    pytest.param(estimator, check, id=f"{name}-{getattr(check, 'func', check).__name__}")
    for name, one in ESTIMATORS.items()
    for estimator, check in estimator_checks_generator(one)
    if getattr(check, "func", check).__name__ not in LEFT_OUT
]


@pytest.fixture(scope="module")
def rows():
    """Return rows `(400, 12)` with a mean, and a label that two of their dimensions decide."""
    generator = np.random.default_rng(0)
    made = generator.normal(size=(400, 12)) * np.linspace(3, 0.3, 12) + 2
    return made.astype(np.float32), (made[:, 0] > made[:, 1]).astype(int)


@pytest.mark.parametrize(("estimator", "check"), CHECKS)
def test_estimator_passes_the_check_of_scikit_learn(estimator, check):
    check(estimator)


def test_there_are_checks_and_most_are_run():
    assert len(CHECKS) > 40 * len(ESTIMATORS)


def test_outputs_equal_those_of_the_chain(rows):
    x, _ = rows
    expected = Chain(parse_steps("r2,pca:4")).fit(x).transform(x)

    fitted = ChainTransformer("r2,pca:4").fit(x)

    np.testing.assert_array_equal(fitted.transform(x), expected)
    assert fitted.chain_.output_dimensions == 4
    assert list(fitted.get_feature_names_out()) == [f"chaintransformer{i}" for i in range(4)]


def test_codes_come_out_as_the_floats_that_they_stand_for(rows):
    x, _ = rows
    fitted = ChainTransformer("r2,pca:4,int8").fit(x)

    np.testing.assert_array_equal(fitted.transform(x), fitted.chain_.floats(x))
    assert fitted.transform(x).dtype == np.float32


def test_a_grid_search_chooses_the_steps_that_keep_the_label(rows):
    pipeline = make_pipeline(ChainTransformer(normalize=False), LogisticRegression())
    steps = ["truncation:1", "mc,pca:6", [{"kind": "truncation", "dimensions": 2}]]

    search = GridSearchCV(pipeline, {"chaintransformer__steps": steps}, cv=3).fit(*rows)

    assert search.best_params_["chaintransformer__steps"] != "truncation:1"
    assert search.best_score_ > 0.95


@pytest.mark.parametrize(
    ("estimator", "error", "words"),
    [
        (ChainTransformer("r2,pca:40"), StepError, "40"),
        (ChainTransformer("pac:4"), StepError, "pca"),
        (ChainTransformer("procrustes"), StepError, "pairs, which scikit-learn's fit does not pass"),
        (ChainTransformer("query_adapter"), StepError, "pairs, which scikit-learn's fit does not pass"),
        (ChainTransformer("r2,random_projection:4", dimensions=2), InputError, "only 4"),
        (ChainTransformer("r2,pca:4", dimensions=5), InputError, "up to 4"),
    ],
)
def test_a_fit_that_cannot_be_is_refused_and_leaves_nothing_fitted(rows, estimator, error, words):
    with pytest.raises(error, match=words):
        estimator.fit(rows[0])
    assert not hasattr(estimator, "chain_")


def test_steps_that_are_transforms_are_refused_with_what_to_pass():
    with pytest.raises(StepError, match="steps are a list of objects"):
        ChainTransformer(steps=R2()).fit(np.eye(4))
