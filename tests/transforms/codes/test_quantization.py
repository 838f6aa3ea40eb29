import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lathe.transforms import PCA, Binary, Chain, InputError, Int8, Moments

WIDTH = 24
QUANTIZERS = [Int8, Binary]


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(300, WIDTH)


@pytest.fixture(scope="module")
def fresh(embeddings):
    return embeddings(80, WIDTH, seed=1)


@pytest.fixture(scope="module")
def int8(rows):
    return Int8().fit(rows)


@pytest.fixture(scope="module")
def binary(rows):
    return Binary().fit(rows)


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def quantize_linear(x, scale, zero_point):
    """Apply the formula of ONNX: y = saturate(round to even(x / scale) + zero point)."""
    return np.clip(np.rint(x / scale) + zero_point, -128, 127).astype(np.int8)


MATRICES = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 20), st.integers(1, 9)),
    elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False),
)


def test_int8_scale_zero_point_and_codes_match_onnx_quantize_linear(rows, fresh, int8):
    low, high = np.minimum(rows.min(0), 0).astype(np.float64), np.maximum(rows.max(0), 0).astype(np.float64)
    scale = (high - low) / 255
    zero_point = np.clip(np.rint(-128 - low / scale), -128, 127)
    np.testing.assert_allclose(int8.scale, scale, rtol=1e-6)
    np.testing.assert_array_equal(int8.zero_point, zero_point)
    codes = int8.transform(fresh)
    assert codes.dtype == np.int8
    np.testing.assert_array_equal(codes, quantize_linear(fresh, int8.scale.numpy(), zero_point))
    expected = (codes.astype(np.float64) - zero_point) * scale
    np.testing.assert_allclose(int8.inverse_transform(codes), expected, atol=1e-6)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(rows=MATRICES)
def test_int8_error_within_the_range_is_at_most_half_a_step(rows):
    int8 = Int8().fit(rows)
    back = int8.inverse_transform(int8.transform(rows)).astype(np.float64)
    step = int8.scale.double().numpy()
    # Beside the half step there is the rounding of float32, of x/s and of what comes back.
    assert (np.abs(back - rows) <= step * 0.5001 + 1e-6 * np.abs(rows)).all()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(rows=MATRICES)
def test_int8_represents_zero_exactly_and_requantizes_decoded_codes_to_the_same_codes(rows):
    int8 = Int8().fit(rows)
    zeros = np.zeros((2, rows.shape[1]), np.float32)
    assert not int8.inverse_transform(int8.transform(zeros)).any()
    codes = int8.transform(rows)
    np.testing.assert_array_equal(int8.transform(int8.inverse_transform(codes)), codes)


def test_int8_clips_values_outside_the_fitted_range(rows, int8):
    top = int8.transform(np.full((1, WIDTH), 1e9))
    bottom = int8.transform(np.full((1, WIDTH), -1e9))
    assert (top == 127).all()
    assert (bottom == -128).all()
    step = int8.scale.numpy()
    highest, lowest = int8.inverse_transform(top)[0], int8.inverse_transform(bottom)[0]
    assert (np.abs(highest - np.maximum(rows.max(0), 0)) <= step).all()
    assert (np.abs(lowest - np.minimum(rows.min(0), 0)) <= step).all()


@pytest.mark.parametrize("value", [0.0, 0.7, -0.7, 1e-30, 1e30])
def test_int8_codes_a_constant_dimension_within_one_percent(rows, value):
    flat = rows.copy()
    flat[:, 3] = value
    int8 = Int8().fit(flat)
    back = int8.inverse_transform(int8.transform(flat))
    np.testing.assert_allclose(back[:, 3], value, rtol=1e-2)
    assert float(int8.scale[3]) > 0


def test_int8_range_of_a_dimension_of_one_sign_includes_zero():
    rows = np.random.default_rng(0).uniform(5, 6, size=(50, 3)) * [1, -1, 1]
    int8 = Int8().fit(rows)
    np.testing.assert_array_equal(int8.zero_point, [-128, 127, -128])
    np.testing.assert_allclose(int8.inverse_transform(int8.transform(rows)), rows, atol=6 / 255 / 2 + 1e-6)


def test_int8_fitted_on_moments_covers_four_standard_deviations(rows):
    moments = Moments.from_vectors(rows[:100]).merge(Moments.from_vectors(rows[100:]))
    int8 = Int8().fit(moments)
    precise = rows.astype(np.float64)
    low, high = (precise.mean(0) + side * precise.std(0) for side in (-4, 4))
    np.testing.assert_allclose(int8.scale, (np.maximum(high, 0) - np.minimum(low, 0)) / 255, rtol=1e-5)
    back = int8.inverse_transform(int8.transform(rows))
    assert (np.abs(back - rows) <= 0.5001 * int8.scale.numpy() + 1e-6)[(rows > low) & (rows < high)].all()


def test_int8_and_binary_learn_from_the_rows_of_every_block(embeddings):
    rows = embeddings(9000, 4)
    rows[8999, 2], rows[0, 1] = 50, -50
    int8 = Int8().fit(rows)
    np.testing.assert_allclose(int8.scale, (np.maximum(rows.max(0), 0) - np.minimum(rows.min(0), 0)) / 255, rtol=1e-6)
    np.testing.assert_allclose(Binary().fit(rows).size, np.abs(rows).mean(0, dtype=np.float64), rtol=1e-6)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(rows=MATRICES)
def test_binary_codes_equal_numpys_packbits_of_positive_values(rows):
    codes = Binary().fit(rows).transform(rows)
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, np.packbits(rows > 0, axis=1))


def test_binary_decodes_to_the_mean_absolute_value_of_each_dimension_with_the_sign_of_the_bit(rows, fresh, binary):
    size = np.abs(rows.astype(np.float64)).mean(0)
    expected = np.where(fresh > 0, size, -size)
    np.testing.assert_allclose(binary.inverse_transform(binary.transform(fresh)), expected, rtol=1e-6)


def test_binary_fitted_on_moments_decodes_to_the_root_mean_square(rows):
    size = Binary().fit(Moments.from_vectors(rows)).size
    np.testing.assert_allclose(size, np.sqrt(np.square(rows.astype(np.float64)).mean(0)), rtol=1e-6)


def test_binary_codes_of_zero_and_negative_rows_have_no_bit_set(binary):
    """The all-zero code decodes to zero."""
    zeros = np.zeros((2, WIDTH), np.float32)
    assert not binary.transform(zeros).any()
    assert not binary.inverse_transform(binary.transform(zeros)).any()
    assert not binary.transform(-np.abs(np.random.default_rng(0).normal(size=(2, WIDTH)))).any()


@pytest.mark.parametrize(("cls", "bytes_of"), [(Int8, lambda k: k), (Binary, lambda k: -(-k // 8))])
def test_int8_takes_one_byte_and_binary_one_bit_per_dimension(rows, cls, bytes_of):
    for k in (1, 7, 8, 12, 20):
        chain = Chain([PCA(k), cls()]).fit(rows)
        assert chain.bytes_per_vector == bytes_of(k) == chain.transform(rows[:1]).nbytes
        assert chain.output_dimensions == k
        assert Chain([PCA(k)]).fit(rows).bytes_per_vector == 4 * k
    assert Chain([cls()]).bytes_per_vector is None


@pytest.mark.parametrize("cls", QUANTIZERS)
def test_a_chain_normalises_before_it_quantizes(rows, fresh, cls):
    chain = Chain([PCA(12, "none"), cls()]).fit(rows)
    before = unit(PCA(12, "none").fit(rows).transform(rows))
    alone = cls().fit(before)
    for name, buffer in alone.named_buffers():
        np.testing.assert_allclose(chain.quantizer.get_buffer(name), buffer, rtol=1e-4)
    np.testing.assert_array_equal(chain.transform(fresh * 100), chain.transform(fresh))
    np.testing.assert_array_equal(chain.transform(fresh), chain.quantizer.transform(chain_floats(chain, fresh)))


def chain_floats(chain, rows):
    """Return the outputs of a chain before its quantizer."""
    return Chain(chain.float_steps, chain.normalize).transform(rows)


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_scores_and_norms_are_those_of_the_decoded_vectors_over_any_number_of_blocks(rows, kind, monkeypatch):
    step = kind().fit(rows)
    some = rows.copy()
    some[7] = 0
    codes, queries = step.transform(some), rows[:9]
    assert torch.from_numpy(codes).dtype == step.code_dtype
    decoded = step.inverse_transform(codes)
    for block in (1, 299, 300, 4096):
        monkeypatch.setattr("lathe.transforms.codes.quantization.DECODED_ROWS", block)
        np.testing.assert_allclose(step.score(queries, codes), queries @ decoded.T, atol=1e-5)
        np.testing.assert_allclose(step.decoded_norms(codes), np.linalg.norm(decoded, axis=1), atol=1e-5)
    of_tensor = step.score(torch.from_numpy(queries), torch.from_numpy(codes))
    np.testing.assert_allclose(of_tensor, queries @ decoded.T, atol=1e-5)
    assert step.score(queries, codes[:0]).shape == (9, 0)
    with pytest.raises(InputError, match="dimensions"):
        step.score(queries, codes[:, 1:])
