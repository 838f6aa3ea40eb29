import numpy as np
import pytest

from lathe.service.chains.resolve import encode_output
from lathe.service.errors import BadValueError


@pytest.fixture
def rows():
    """Draw unit vectors `(300, 64)`."""
    found = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_encode_output_packs_bits_from_the_highest_and_binary_is_ubinary_minus_128():
    row = np.array([[1, -1, -1, -1, -1, -1, -1, 1, 1, 0]], np.float32)
    ubinary, binary = (encode_output(row, dtype, None) for dtype in ("ubinary", "binary"))
    assert ubinary.dtype == np.uint8 and ubinary.tolist() == [[129, 128]]
    assert binary.dtype == np.int8 and binary.tolist() == [[1, 0]]


def test_encode_output_to_int8_is_row_wise_and_preserves_inner_products(rows):
    codes = encode_output(rows, "int8", None)
    assert codes.dtype == np.int8 and codes.shape == rows.shape
    np.testing.assert_array_equal(codes, np.concatenate([encode_output(row[None], "int8", None) for row in rows]))
    unit = codes / np.linalg.norm(codes, axis=1, keepdims=True)
    np.testing.assert_allclose(unit @ unit.T, rows @ rows.T, atol=0.02)
    assert encode_output(np.array([[1.0, 0], [-1, 0]], np.float32), "int8", None).tolist() == [[127, 0], [-127, 0]]
    far = np.eye(1, 400, dtype=np.float32)
    assert encode_output(np.concatenate([far, -far]), "int8", None)[:, 0].tolist() == [127, -127]


def test_encode_output_to_float16_rounds_and_refuses_what_it_cannot_hold(rows):
    halves = encode_output(rows, "float16", None)
    assert halves.dtype == np.float16
    np.testing.assert_allclose(halves, rows, atol=5e-4)
    with pytest.raises(BadValueError, match="above 65,504"):
        encode_output(70_000 * rows / np.abs(rows).max(), "float16", None)
