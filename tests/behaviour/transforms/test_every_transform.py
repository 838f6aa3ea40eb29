import copy
import json

import numpy as np
import pytest
import torch

from lathe.transforms import PCA, R2, TRANSFORMS, Chain, InputError, Moments, NotFittedError, StepError, build_steps
from lathe.transforms.base import QueryPairs
from lathe.transforms.chain import deserialize_chain, serialize_chain
from lathe.transforms.kinds import KINDS

WIDTH = 24
PAIRED = ("procrustes", "low_rank_affine", "contrastive_alignment")
CODES = ("int8", "binary", "codes", "product_codes")
BLIND = ("normalize", "query_adapter", "rand", "random_projection", "random_selection", "truncation")
"""Kinds that learn at most the dimensions and ignore the values of the rows."""

SEEDED = ("autoencoder", "flow", "geopres", "itq", "rand", "random_projection", "random_selection")

TRUNCATION = {"kind": "truncation", "dimensions": 8}

QUICK = {"steps": 3, "batch": 64, "seed": 1}

OWN_PATHS = [
    {"kind": "codes", "bytes": 2, "weighting": 0.0, "bits": 2, "rotation": "random", "seed": 1, "restore_norm": False},
    {"kind": "geopres", "dimensions": 8, "preset": "paper", "steps": 3, "seed": 1},
    {"kind": "low_rank_affine", "rank": 5, "ridge": 0.0},
    {"kind": "pca", "dimensions": 8, "center": "none"},
    {"kind": "pca", "dimensions": 8, "center": "directions"},
    {"kind": "whitening", "form": "zca", "dimensions": 8, "renormalize": False},
    {"kind": "whitening", "power": "auto", "dimensions": 8, "renormalize": False},
]
"""Specs whose fit takes another path through the code than that of the first spec of their kind."""

SHORT = [
    {"kind": "abtt", "directions": 2},
    {"kind": "abtt", "literal": True, "renormalize": False},
    {"kind": "autoencoder", "dimensions": 8, "learning_rate": 1e-2, **QUICK},
    {"kind": "binary"},
    {"kind": "codes", "bytes": 5, "weighting": 0.5},
    {"kind": "contrastive_alignment", "learning_rate": 1e-3, "weight_decay": 1.0, **QUICK},
    {"kind": "flow", "blocks": 2, "hidden": 8, "noise": 0.05, "learning_rate": 1e-3, **QUICK},
    {"kind": "geopres", "dimensions": 8, "nested": True, "learning_rate": 1e-3, **QUICK},
    {"kind": "int8"},
    {"kind": "itq", "iterations": 3, "seed": 3},
    {"kind": "itq", "aligned": True, "iterations": 3, "seed": 3},
    {"kind": "low_rank_affine"},
    {"kind": "mc"},
    {"kind": "normalize"},
    {"kind": "pca", "dimensions": 8},
    {"kind": "pca"},
    {"kind": "procrustes"},
    {"kind": "procrustes", "center": True},
    {"kind": "product_codes", "bytes": 5, "weighting": 0.5, "iterations": 3},
    {"kind": "query_adapter", "negatives": 2, "learning_rate": 1e-3, "weight_decay": 1.0, **QUICK},
    {"kind": "r1"},
    {"kind": "r1", "renormalize": False},
    {"kind": "r2"},
    {"kind": "rand", "seed": 3},
    {"kind": "random_projection", "dimensions": 8, "seed": 3},
    {"kind": "random_selection", "dimensions": 8, "seed": 3},
    {"kind": "sides", "query": [{"kind": "mc"}], "document": [{"kind": "r2"}]},
    {"kind": "sides", "query": [{"kind": "pca", "dimensions": 8, "center": "none"}], "document": [TRUNCATION]},
    TRUNCATION,
    {"kind": "whitening"},
    {"kind": "whitening", "renormalize": False},
    {"kind": "whitening", "dimensions": 8, "renormalize": False},
    {"kind": "whitening", "form": "zca", "renormalize": False},
    {"kind": "whitening", "form": "zca", "dimensions": 8},
    {"kind": "whitening", "shrinkage": "ledoit-wolf"},
    {"kind": "whitening", "rcond": 0.1, "renormalize": False},
    {"kind": "whitening", "power": 0.5, "epsilon": 1e-6, "relative": False},
    {"kind": "whitening", "power": "auto"},
    *OWN_PATHS,
]
"""Specs with the parameters that are not the default."""


def make(spec):
    return build_steps([spec])[0]


SPECS = [make(short).spec() for short in SHORT]


def name_of(spec):
    """Return a test id: the kind and the parameters that matter."""
    odd = {"kind", "steps", "batch", "learning_rate", "seed", "epsilon"}
    return "-".join([spec["kind"], *(f"{key}={value}" for key, value in spec.items() if key not in odd and value)])


def has_an_inverse(spec):
    if spec["kind"] in ("whitening", "abtt"):
        return not spec["renormalize"]
    return spec["kind"] not in ("normalize", "r1", "r2", "rand", "sides", "truncation")


def specs_where(condition):
    """Parametrize a test over the specs that meet a condition."""
    return pytest.mark.parametrize("spec", [spec for spec in SPECS if condition(spec)], ids=name_of)


def test_every_kind_declares_the_shapes_of_its_buffers():
    """What is not declared is not checked when a chain of somebody else is loaded."""
    named = {short["kind"]: short for short in SHORT}
    for kind in KINDS:
        buffers = {name for name, _ in make(named[kind]).named_buffers() if "." not in name}
        assert buffers <= set(TRANSFORMS[kind].shapes), kind


every = specs_where(lambda spec: True)
FIRST_OF_EACH_KIND = {spec["kind"]: spec for spec in reversed(SPECS)}.values()
every_path = pytest.mark.parametrize(
    "spec", [*FIRST_OF_EACH_KIND, *(make(spec).spec() for spec in OWN_PATHS)], ids=name_of
)
"""One spec for each path of a fit through the code."""

every_fitted = specs_where(lambda spec: spec["kind"] != "normalize")
"""All specs but `normalize`, which accepts any dimensions and learns nothing."""
every_with_an_inverse = specs_where(has_an_inverse)


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(300, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(60, WIDTH, seed=1)


@pytest.fixture(scope="module")
def fitted(rows):
    """Return a function that fits each spec once on the same rows."""
    known = {}

    def get(spec):
        key = json.dumps(spec)
        if key not in known:
            known[key] = fit(spec, rows)
        return known[key]

    return get


def targets_of(rows, width=16):
    """Return a noisy linear map of the rows, as another encoder of `width` dimensions might give."""
    rows = np.asarray(rows, np.float64)
    rng = np.random.default_rng(width)
    other = rows @ rng.normal(size=(rows.shape[1], width)) / np.sqrt(rows.shape[1])
    return other + 0.01 * rng.normal(size=other.shape) * np.abs(other).mean() + 0.1


def pairs_of(rows):
    """Return pairs of each row as a document and a noisy linear map of it as the query."""
    documents = np.asarray(rows, np.float32)
    rng = np.random.default_rng(1)
    d = documents.shape[1]
    mixing = np.eye(d) + rng.normal(size=(d, d)) / (2 * np.sqrt(d))
    queries = (documents @ mixing + 0.01 * np.abs(documents).mean() * rng.normal(size=documents.shape)).astype("f")
    return QueryPairs(queries, documents, np.column_stack([np.arange(len(documents))] * 2))


def fit(spec, rows):
    step = make(spec)
    return step.fit(rows, targets=targets_of(rows), pairs=pairs_of(rows) if step.takes_pairs else None)


def floats(step, rows):
    """Return the outputs of a step, decoded to floats if they are codes."""
    out = step.transform(rows)
    return step.inverse_transform(out) if step.kind in CODES else out


def test_the_specs_of_these_tests_cover_every_kind_of_transform():
    assert {spec["kind"] for spec in SPECS} == set(TRANSFORMS)


NAN = float("nan")
FLAG, WHOLE_FROM_0, WHOLE_FROM_1 = "true or false", "a whole number from 0", "a whole number from 1"
INVALID = [
    ("abtt", "directions", WHOLE_FROM_1, [0, 2.5]),
    ("abtt", "literal", FLAG, ["yes"]),
    ("abtt", "renormalize", FLAG, [0]),
    ("autoencoder", "dimensions", WHOLE_FROM_1, [0, 8.0, True, None]),
    ("autoencoder", "literal", FLAG, [1, None]),
    ("autoencoder", "steps", WHOLE_FROM_1, [0, 1.5]),
    ("autoencoder", "batch", "a whole number from 2", [1, "all"]),
    ("autoencoder", "learning_rate", "a number", [0, 1.1, NAN]),
    ("autoencoder", "seed", WHOLE_FROM_0, [-1, None]),
    ("codes", "codec_version", WHOLE_FROM_1, [0]),
    ("codes", "restore_norm", FLAG, [1]),
    ("contrastive_alignment", "temperature", "a number from 0.001", [0, NAN, "cold"]),
    ("contrastive_alignment", "steps", WHOLE_FROM_1, [0]),
    ("contrastive_alignment", "weight_decay", "a number from 0", [-1]),
    ("flow", "blocks", WHOLE_FROM_1, [0, 1.0, None]),
    ("flow", "hidden", WHOLE_FROM_1, [0, "wide"]),
    ("flow", "noise", "a number from 0 to 1", [-0.1, 1.1, NAN, None]),
    ("flow", "steps", WHOLE_FROM_1, [0]),
    ("flow", "batch", "a whole number from 2", [1]),
    ("flow", "learning_rate", "a number", [0, 2]),
    ("flow", "seed", WHOLE_FROM_0, [-1]),
    ("geopres", "dimensions", WHOLE_FROM_1, [0, -3, 8.0, "8", True, None]),
    ("geopres", "nested", FLAG, [1, "yes"]),
    ("geopres", "steps", WHOLE_FROM_0, [-1, 1.5]),
    ("geopres", "batch", "a whole number from 2", [1]),
    ("geopres", "learning_rate", "a number", [0.0, -1e-3, 1.1, NAN, "fast"]),
    ("geopres", "preset", "lathe or paper", ["fast", None]),
    ("geopres", "loss", "blend", ["rank"]),
    ("geopres", "rank_strength", "a number", [0]),
    ("geopres", "seed", WHOLE_FROM_0, [-1, 0.5]),
    ("low_rank_affine", "rank", WHOLE_FROM_1, [0]),
    ("low_rank_affine", "ridge", "a number from 0", [-1, True, NAN]),
    ("pca", "dimensions", WHOLE_FROM_1, [0, -1, 2.0, "8", True]),
    ("pca", "center", "data or directions or none", ["mean", True, None, ["data"]]),
    ("procrustes", "center", FLAG, [1]),
    ("r1", "renormalize", FLAG, [1]),
    ("rand", "seed", WHOLE_FROM_0, [-1, 1.5, "x", None, True]),
    ("random_projection", "dimensions", WHOLE_FROM_1, [0, -3, 2.0, "8", None, False]),
    ("random_projection", "seed", WHOLE_FROM_0, [-1, 0.5, None]),
    ("random_selection", "dimensions", WHOLE_FROM_1, [0, -3, 2.0, "8", None, False]),
    ("random_selection", "seed", WHOLE_FROM_0, [-1, 0.5, None]),
    ("truncation", "dimensions", WHOLE_FROM_1, [0, -3, 2.0, "8", None, False]),
    ("whitening", "dimensions", WHOLE_FROM_1, [0]),
    ("whitening", "form", "pca or zca", ["cholesky"]),
    ("whitening", "power", "a number from 0 to 2", [2.1, -0.1]),
    ("whitening", "epsilon", "a number from 0", [-1e-9, NAN]),
    ("whitening", "relative", FLAG, [1]),
    ("whitening", "shrinkage", "ledoit-wolf", ["oas"]),
    ("whitening", "shrinkage", "a number from 0 to 1", [1.5, True]),
    ("whitening", "rcond", "a number from 0 to 1", [2]),
    ("whitening", "renormalize", FLAG, [None]),
]


@pytest.mark.parametrize(("kind", "parameter", "reason", "values"), INVALID)
def test_invalid_parameters_are_refused_by_name_and_value(kind, parameter, reason, values):
    needed = next(spec for spec in SHORT if spec["kind"] == kind)
    for value in values:
        given = {name: needed[name] for name in ("dimensions", "bytes") if name in needed} | {parameter: value}
        with pytest.raises(StepError, match=f"^{kind}: {parameter} must be {reason}") as refusal:
            Chain([TRANSFORMS[kind](**given)])
        assert repr(value) in str(refusal.value)


@every
def test_the_spec_of_a_step_equals_the_spec_it_was_built_from_and_is_json(spec, fitted):
    assert make(spec).spec() == spec
    assert fitted(spec).spec() == spec
    assert json.loads(json.dumps(fitted(spec).spec())) == spec


@every
def test_loaded_chain_of_any_step_is_equal_and_has_bit_equal_outputs(spec, fitted, fresh, tmp_path):
    steps = [fitted(spec), R2().fit(fresh)] if spec["kind"] == "normalize" else [fitted(spec)]
    for normalize in (True, False):
        chain = Chain(steps, normalize)
        chain.save(tmp_path / f"chain-{normalize}")
        loaded = Chain.load(tmp_path / f"chain-{normalize}")
        assert loaded == chain
        assert loaded.specs() == chain.specs()
        assert (loaded.input_dimensions, loaded.output_dimensions) == (chain.input_dimensions, chain.output_dimensions)
        np.testing.assert_array_equal(loaded.transform(fresh), chain.transform(fresh))
        np.testing.assert_array_equal(loaded.fold().transform(fresh), chain.fold().transform(fresh))


def in_standard_layout(tensor):
    """Return whether a tensor has torch's own strides and 64-byte alignment."""
    return tensor.stride() == torch.empty(tensor.shape).stride() and tensor.data_ptr() % 64 == 0


@every
def test_every_buffer_has_torchs_standard_strides_and_alignment(spec, fitted, fresh, tmp_path):
    """This holds after fitting, loading, deserializing, copying, folding and inverting."""
    chain = Chain([fitted(spec), *([R2().fit(fresh)] if spec["kind"] == "normalize" else [])], normalize=False)
    chain.save(tmp_path / "chain")
    found = {
        "fitted": chain,
        "loaded": Chain.load(tmp_path / "chain"),
        "unpacked": deserialize_chain(serialize_chain(chain)),
        "copied": copy.deepcopy(chain),
        "folded": chain.fold(),
        "folded to float64": chain.double().fold(),
        "back in float32": chain.float(),
    }
    if has_an_inverse(spec):
        found["the way back"] = fitted(spec).inverse()
    wrong = [
        f"{what}: {name} {tuple(buffer.shape)} has strides {buffer.stride()}, {buffer.data_ptr() % 64} bytes off"
        for what, module in found.items()
        for name, buffer in module.named_buffers()
        if not in_standard_layout(buffer)
    ]
    assert not wrong


@every
def test_transform_is_bit_equal_for_any_memory_layout_of_the_rows(spec, fitted, fresh):
    step, some = fitted(spec), fresh[:7]
    moved = [np.append(np.zeros(offset, np.float32), some)[offset:].reshape(some.shape) for offset in (1, 2, 4, 9)]
    turned, apart, upside_down = np.asfortranarray(some), np.repeat(some, 3, axis=1)[:, ::3], some[::-1].copy()[::-1]
    expected = step.transform(some)
    for rows in (*moved, turned, apart, upside_down):
        np.testing.assert_array_equal(step.transform(rows), expected)
        if rows.strides[0] > 0:
            np.testing.assert_array_equal(step.transform(torch.from_numpy(rows)), expected)


@every
def test_a_repeated_fit_is_bit_equal_and_leaves_the_rows_unchanged(spec, rows, fitted):
    before = rows.copy()
    again = fit(spec, rows)
    for name, buffer in fitted(spec).named_buffers():
        assert torch.equal(again.get_buffer(name), buffer), name
    np.testing.assert_array_equal(rows, before)


@specs_where(lambda spec: spec["kind"] in SEEDED)
def test_a_fit_with_another_seed_differs(spec, rows, fitted):
    other = fit(spec | {"seed": spec["seed"] + 1}, rows)
    assert any(not torch.equal(other.get_buffer(name), buffer) for name, buffer in fitted(spec).named_buffers())


@every
def test_transform_of_a_single_row_equals_its_output_in_a_batch(spec, fitted, fresh):
    step = fitted(spec)
    whole = step.transform(fresh)
    np.testing.assert_allclose(
        np.concatenate([step.transform(row[None]) for row in fresh]), whole, rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(np.stack([step.transform(row) for row in fresh]), whole, rtol=1e-6, atol=1e-6)


@every
def test_transform_of_zero_rows_gives_zero_rows_of_the_output_dimensions(spec, fitted, fresh):
    step = fitted(spec)
    assert step.transform(fresh[:0]).shape == (0, step.transform(fresh).shape[1])


@every
def test_zero_rows_stay_zero_alone_or_in_a_batch_folded_or_not(spec, fitted, fresh):
    mixed = fresh.copy()
    mixed[[0, 7, 59]] = 0
    for zeros in (np.zeros((3, WIDTH), np.float32), mixed):
        lost = ~zeros.any(axis=1)
        for normalize in (True, False):
            chain = Chain([fitted(spec)], normalize)
            for out in (floats(fitted(spec), zeros), chain.floats(zeros), chain.fold().floats(zeros)):
                assert np.isfinite(out).all()
                assert not out[lost].any()


@every
def test_no_ordinary_row_is_mapped_to_zero(spec, fitted, fresh):
    # A row without any positive number has no bit set, and would; there is none among these.
    assert floats(fitted(spec), fresh).any(axis=1).all()


@every
def test_transform_returns_an_array_for_an_array_and_a_tensor_for_a_tensor_which_stay_unchanged(spec, fitted, fresh):
    """A tensor that requires a gradient gives one without a gradient."""
    step, given = fitted(spec), torch.from_numpy(fresh.copy())
    array, tensor = step.transform(fresh), step.transform(given)
    np.testing.assert_array_equal(given, fresh)
    without_gradient = step.transform(given.requires_grad_())
    assert not without_gradient.requires_grad
    np.testing.assert_allclose(without_gradient, tensor, atol=1e-6)
    assert isinstance(array, np.ndarray)
    assert isinstance(tensor, torch.Tensor)
    codes = dict.fromkeys(CODES, np.uint8) | {"int8": np.int8}
    expected = codes.get(spec["kind"], np.float32)
    assert array.dtype == expected
    assert tensor.numpy().dtype == expected
    np.testing.assert_array_equal(tensor, array)


@every
def test_transform_of_any_float_dtype_equals_that_of_the_float32_copy(spec, fitted, fresh):
    step = fitted(spec)
    half = fresh.astype(np.float16)
    expected = step.transform(half.astype(np.float32))
    for dtype in (np.float16, np.float64):
        out = step.transform(half.astype(dtype))
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(out, expected)
        if any(buffer.is_floating_point() for buffer in step.buffers()):  # else it works in what the tensor is in
            np.testing.assert_array_equal(step.transform(torch.from_numpy(half.astype(dtype))), expected)


@every_path
def test_fit_on_any_float_dtype_equals_the_fit_on_the_float32_copy(spec, rows):
    half = rows.astype(np.float16)
    targets = targets_of(half)
    pairs = pairs_of(half) if make(spec).takes_pairs else None
    expected = make(spec).fit(half.astype(np.float32), targets=targets, pairs=pairs)
    for dtype in (np.float16, np.float64):
        found = make(spec).fit(half.astype(dtype), targets=targets, pairs=pairs)
        for name, buffer in expected.named_buffers():
            np.testing.assert_allclose(found.get_buffer(name), buffer, rtol=1e-5, atol=1e-5, err_msg=name)
        assert all(buffer.dtype in (torch.float32, torch.int64) for buffer in found.buffers())


def check_folded(chain, rows):
    """Check that a folded chain has the outputs of the chain: codes up to those at a threshold."""
    whole, folded = chain.transform(rows), chain.fold().transform(rows)
    kind = chain.steps[-1].kind
    if kind == "int8":
        assert np.abs(whole.astype(int) - folded).max() <= 1
    elif kind in ("codes", "product_codes"):
        assert (whole != folded).mean() < 0.01
    elif kind == "binary":
        sure = np.abs(Chain(chain.float_steps, chain.normalize).transform(rows)) > 1e-5
        bits, others = (np.unpackbits(codes, axis=1)[:, : sure.shape[1]][sure] for codes in (whole, folded))
        np.testing.assert_array_equal(bits, others)
    else:
        np.testing.assert_allclose(folded, whole, rtol=1e-5, atol=1e-5)


@every
def test_folded_chain_of_one_step_equals_the_chain(spec, fitted, fresh):
    for normalize in (True, False):
        check_folded(Chain([fitted(spec)], normalize), fresh)


@every
def test_folded_chain_with_the_step_between_others_equals_the_chain(spec, rows, fresh):
    if spec["kind"] in CODES:
        steps = [R2(), PCA(10), make(spec)]
    elif spec["kind"] == "whitening":  # its pca form alone gives fewer numbers
        steps = [PCA(20), make(spec), R2(), PCA(6)]
    elif spec["kind"] == "low_rank_affine":  # off one direction it needs a ridge
        steps = [R2(), make(spec | {"ridge": 1e-3}), R2(), PCA(4)]
    else:
        steps = [R2(), make(spec), R2(), PCA(6)]
    targets = targets_of(rows) if any(step.paired for step in steps) else None
    pairs = pairs_of(rows) if any(step.takes_pairs for step in steps) else None
    chain = Chain(steps, normalize=False).fit(rows, targets=targets, pairs=pairs)
    for normalize in (True, False):
        check_folded(Chain(chain.steps, normalize), fresh)


def test_normalize_is_fitted_from_the_start_and_accepts_any_dimensions(rows):
    step = make({"kind": "normalize"})
    assert step.fitted
    for width in (1, 5, WIDTH):
        assert step.transform(rows[:, :width]).shape == (300, width)


@every_fitted
def test_an_unfitted_step_or_chain_cannot_transform_invert_or_fold(spec, rows):
    step = make(spec)
    assert not step.fitted
    for apply in (step.transform, step.inverse_transform, Chain([step]).transform, Chain([step]).floats):
        with pytest.raises(NotFittedError):
            apply(rows)
    with pytest.raises(NotFittedError):
        Chain([step]).fold()


@every_fitted
def test_a_fitted_step_alone_or_in_a_chain_refuses_vectors_of_other_dimensions(spec, fitted):
    for module in (fitted(spec), Chain([fitted(spec)]), Chain([fitted(spec)]).fold()):
        for shape in ((3, WIDTH - 1), (3, WIDTH + 1), (WIDTH - 1,), (0, WIDTH - 1), ()):
            with pytest.raises(InputError, match=f"{WIDTH} dimensions"):
                module.transform(np.ones(shape, np.float32))


@every_with_an_inverse
def test_inverse_transform_refuses_vectors_of_other_than_the_output_dimensions(spec, fitted, fresh):
    step = fitted(spec)
    width = step.transform(fresh).shape[1]
    for wrong in (width - 1, width + 1):
        with pytest.raises(InputError, match=f"{width} dimensions"):
            step.inverse_transform(np.ones((3, wrong), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_fit_names_a_row_with_any_number_that_is_not_finite_in_any_dtype(rows, value, dtype):
    bad = rows.astype(dtype)
    bad[277, 3] = value
    for spec in ({"kind": "mc"}, {"kind": "int8"}, {"kind": "geopres", "dimensions": 8, **QUICK}):
        with pytest.raises(InputError, match="row 277 "):
            make(spec).fit(bad)


@every
def test_fit_names_a_row_that_is_not_finite_unless_the_step_learns_nothing_from_rows(spec, rows):
    bad = rows.copy()
    bad[277, 3] = np.nan
    step = make(spec)
    if spec["kind"] in BLIND:
        step.fit(bad, pairs=pairs_of(rows) if step.takes_pairs else None)
        assert np.isfinite(step.transform(rows)).all()
        return
    with pytest.raises(InputError, match="row 277 "):
        step.fit(bad, targets=targets_of(rows))
    assert not step.fitted


@specs_where(lambda spec: spec["kind"] not in BLIND)
def test_a_refused_fit_leaves_a_fitted_step_unchanged(spec, rows, fitted):
    step, bad = copy.deepcopy(fitted(spec)), rows.copy()
    bad[277, 3] = np.nan
    with pytest.raises(InputError, match="row 277 "):
        step.fit(bad, targets=targets_of(rows))
    for name, buffer in fitted(spec).named_buffers():
        assert torch.equal(step.get_buffer(name), buffer), name
        assert not step.get_buffer(name).requires_grad
    assert getattr(step, "training_log", None) == getattr(fitted(spec), "training_log", None)


@pytest.mark.parametrize("kind", PAIRED)
def test_fit_on_pairs_names_a_target_that_is_not_finite(kind, rows):
    targets = targets_of(rows)
    targets[123, 2] = np.nan
    with pytest.raises(InputError, match="row 123 "):
        TRANSFORMS[kind]().fit(rows, targets=targets)


@every
def test_fit_refuses_arrays_that_are_not_rows_of_vectors(spec):
    for shape in ((5,), (2, 3, 4), (3, 0), (0, WIDTH)):
        data = np.ones(shape, np.float32)
        with pytest.raises(InputError, match=r"shape|no rows|no pairs"):
            make(spec).fit(data, targets=np.ones((shape[0], 3), np.float32))


@pytest.mark.parametrize("kind", ["autoencoder", "flow", "geopres"])
def test_steps_that_are_trained_on_rows_refuse_moments(kind, rows):
    step = make(
        next(spec for spec in SPECS if spec["kind"] == kind) | ({"preset": "paper"} if kind == "geopres" else {})
    )
    with pytest.raises(InputError, match=f"{kind}.* is trained on vectors"):
        step.fit(Moments.from_vectors(rows))


@every
def test_fit_refuses_empty_moments(spec):
    with pytest.raises(InputError):
        make(spec).fit(Moments())


def normal(*size):
    return np.random.default_rng(0).normal(size=size)


SCALES = np.logspace(-3, 3, WIDTH, dtype=np.float32)
ODD = {
    "one row": lambda rows: rows[:1],
    "two rows": lambda rows: rows[:2],
    "two rows that are one": lambda rows: np.repeat(rows[:1], 2, axis=0),
    "one row of zeros": lambda rows: np.zeros((1, WIDTH), np.float32),
    "zeros": lambda rows: np.zeros((50, WIDTH), np.float32),
    "zeros among other rows": lambda rows: rows * (np.arange(len(rows)) % 10 > 0)[:, None],
    "constant": lambda rows: np.repeat(rows[:1], 50, axis=0),
    "constant in float64": lambda rows: np.repeat(normal(1, WIDTH), 49, axis=0),
    "constant in float16": lambda rows: np.repeat(rows[:1], 50, axis=0).astype(np.float16),
    "duplicates": lambda rows: np.repeat(rows[:10], 5, axis=0),
    "opposites": lambda rows: np.concatenate([rows[:40], -rows[:40]]),
    "fewer rows than dimensions": lambda rows: rows[:9],
    "as many rows as dimensions": lambda rows: rows[:WIDTH],
    "mixed scales": lambda rows: rows * SCALES,
    "mixed scales without a mean": lambda rows: normal(200, WIDTH) * SCALES.astype(float),
    "a mean far larger than the spread": lambda rows: rows[:40] * 1e-4 + 1,
    "columns of zeros": lambda rows: rows[:40] * (np.arange(WIDTH) % 3 > 0),
    "equal columns": lambda rows: np.repeat(rows[:40, :2], WIDTH // 2, axis=1),
    "tiny": lambda rows: rows[:40] * np.float32(1e-25),
    "huge": lambda rows: rows[:40] * np.float32(1e25),
    "one long row": lambda rows: np.concatenate([rows[:40], rows[:1] * 1e6]),
    "rows of one column": lambda rows: np.outer(normal(40), np.eye(WIDTH)[0]).astype(np.float32),
    "one-hot rows": lambda rows: np.eye(WIDTH, dtype=np.float32)[np.arange(100) * 7 % WIDTH],
    "width one": lambda rows: rows[:40, :1].copy(),
    "width two": lambda rows: rows[:40, :2].copy(),
    "width eight": lambda rows: rows[:100, :8].copy(),
}
"""Degenerate data, made of ordinary rows."""


def fit_or_check_reason(spec, data):
    """Fit and check that all outputs are finite, and return None where the fit is refused with a reason."""
    try:
        step = fit(spec, data)
    except (InputError, StepError) as error:
        assert len(str(error).split()) >= 5, f"no reason in {error!s}"
        return None
    other = np.random.default_rng(5).normal(size=(9, data.shape[1])) * np.abs(data).max()
    for rows in (data, other, np.zeros((2, data.shape[1]))):
        for module in (Chain([step], normalize=False), Chain([step]), Chain([step]).fold()):
            assert np.isfinite(module.floats(rows)).all()
    if step.inverse_kind != "none":
        assert np.isfinite(step.inverse_transform(step.transform(data))).all()
    return step


@every_path
def test_fit_on_degenerate_data_gives_finite_outputs_or_is_refused_with_a_reason(spec, rows):
    failures = []
    for name, change in ODD.items():
        try:
            fit_or_check_reason(spec, change(rows))
        except Exception as error:
            failures.append(f"{name}: {error!r}")
    assert not failures, "\n".join(failures)


@every
def test_fit_on_rows_beyond_float32_is_refused_with_a_reason_or_gives_finite_buffers(spec, rows):
    targets = targets_of(rows)
    try:
        pairs = pairs_of(rows) if make(spec).takes_pairs else None
        step = make(spec).fit(rows.astype(np.float64) * 1e40, targets=targets, pairs=pairs)
    except (InputError, StepError) as error:
        assert len(str(error).split()) >= 5
        return
    for name, buffer in step.named_buffers():
        assert torch.isfinite(buffer).all(), name


def test_pca_refuses_rows_whose_squares_overflow_float64(rows):
    with pytest.raises(InputError):
        PCA(2).fit(rows.astype(np.float64) * 1e200)


CANNOT_VARY = ["one row", "two rows that are one", "constant", "constant in float64", "zeros"]


@pytest.mark.parametrize("name", CANNOT_VARY)
@pytest.mark.parametrize(
    "spec",
    [
        {"kind": "abtt"},
        {"kind": "autoencoder", "dimensions": 2},
        {"kind": "codes", "bytes": 2},
        {"kind": "contrastive_alignment"},
        {"kind": "flow"},
        {"kind": "geopres", "dimensions": 2},
        {"kind": "geopres", "dimensions": 2, "preset": "paper"},
        {"kind": "low_rank_affine"},
        {"kind": "whitening"},
        {"kind": "pca", "dimensions": 1},
    ],
    ids=name_of,
)
def test_steps_that_learn_from_differences_refuse_identical_rows(spec, rows, name):
    step, data = make(spec), ODD[name](rows)
    with pytest.raises(InputError, match="differ|needs 1 directions|needs more than 1 rows"):
        step.fit(data, targets=targets_of(data))
    assert not step.fitted


UNIT_ROWS = ("r1", "r2")


@specs_where(lambda spec: spec["kind"] in ("pca", "abtt", "whitening", "mc", "codes", *UNIT_ROWS, *BLIND))
def test_fit_on_merged_moments_equals_the_fit_on_the_rows(spec, rows, fitted):
    data = rows.astype(np.float64)
    if spec["kind"] in UNIT_ROWS:
        data /= np.linalg.norm(data, axis=1, keepdims=True)
    moments = Moments.from_vectors(data[:100]).merge(Moments.from_vectors(data[100:]))
    found = make(spec).fit(moments, pairs=pairs_of(rows) if make(spec).takes_pairs else None)
    for name, buffer in fitted(spec).named_buffers():
        np.testing.assert_allclose(found.get_buffer(name), buffer, rtol=1e-5, atol=1e-6, err_msg=name)


@every
def test_inverse_is_exact_approximate_or_refused_as_inverse_kind_states(spec, fitted, fresh):
    step = fitted(spec)
    out = step.transform(fresh)
    assert (step.inverse_kind != "none") == has_an_inverse(spec)
    if not has_an_inverse(spec):
        with pytest.raises(StepError, match="cannot be inverted"):
            step.inverse_transform(out)
        return
    back = step.inverse_transform(out)
    assert back.dtype == np.float32
    assert back.shape == fresh.shape
    if step.inverse_kind == "exact":
        np.testing.assert_allclose(back, fresh, atol=1e-4)
    if spec["kind"] != "autoencoder":  # its way back is trained, and no projection
        np.testing.assert_allclose(step.transform(back), out, rtol=1e-4, atol=1e-4)
    if step.inverse_kind == "approximate":
        assert np.abs(back - fresh).max() > 1e-3, "it is exact and says it is not"


@every_with_an_inverse
def test_inverse_transform_of_a_tensor_is_a_tensor_with_the_values_of_the_array(spec, fitted, fresh):
    step = fitted(spec)
    out = step.transform(torch.from_numpy(fresh))
    back = step.inverse_transform(out)
    assert isinstance(back, torch.Tensor)
    np.testing.assert_array_equal(back, step.inverse_transform(out.numpy()))


@every
def test_dimensions_after_predicts_the_output_dimensions(spec, fitted, fresh):
    """For steps fitted on pairs, only after the fit."""
    chain = Chain([fitted(spec)])
    found = chain.dequantize(chain.transform(fresh)).shape[1]
    assert chain.dimensions_after(WIDTH) == found
    if spec["kind"] not in PAIRED:
        assert Chain([make(spec)]).dimensions_after(WIDTH) == found


@every_fitted
def test_a_fitted_step_cannot_follow_a_step_of_other_output_dimensions_in_a_chain(spec, fitted, rows):
    with pytest.raises(StepError, match=f"fitted on vectors of {WIDTH} dimensions and cannot follow vectors of 12"):
        Chain([PCA(12).fit(rows), fitted(spec)])


@every
def test_a_fitted_step_can_be_refitted_on_vectors_of_other_dimensions(spec, rows):
    step = fit(spec, rows)
    narrower = fit(spec, rows[:, :16])
    fewer = rows[:, :16]
    refitted = step.fit(fewer, targets=targets_of(fewer), pairs=pairs_of(fewer) if step.takes_pairs else None)
    np.testing.assert_array_equal(refitted.transform(rows[:, :16]), narrower.transform(rows[:, :16]))
    assert Chain([refitted]).dimensions_after(16) == Chain([narrower]).dimensions_after(16)
