"""Moments by blocks against moments in one pass, with a worker in this process.

What Ray adds is in tests/behaviour/fits/test_ray.py.
"""

import numpy as np
import pytest

from lathe.training.distributed.engine import SharedRows
from lathe.training.distributed.worker import RayWorker
from lathe.training.fitting.engines import LOCAL
from lathe.training.fitting.stacked import Part, Stacked
from lathe.transforms import Chain, InputError, parse_steps
from lathe.transforms.chain import deserialize_chain, serialize_chain
from lathe.transforms.statistics import Moments, SharedVectors, moments_of, unit_moments
from lathe.transforms.vectors import BLOCK_ROWS

WIDTH = 12
SIZES = (1, 3000, BLOCK_ROWS, 2 * BLOCK_ROWS + 5, 7)


def compute_block_moments(blocks, chain, unit):
    """Yield the moments of blocks, computed by a worker in this process."""
    worker = RayWorker(None, None, "cpu", 1)
    return (Moments.from_arrays(worker.moments(block, chain, unit)) for block in blocks)


@pytest.fixture(scope="module")
def values():
    return np.random.default_rng(0).standard_normal((sum(SIZES), WIDTH)).astype(np.float32) + 0.5


@pytest.fixture(scope="module", params=["one file", "several files"])
def vectors(request, values, tmp_path_factory):
    """Return the values as one memory map, or stacked from several files."""
    folder, sizes = tmp_path_factory.mktemp("vectors"), SIZES if request.param == "several files" else (len(values),)
    parts, start = [], 0
    for number, size in enumerate(sizes):
        values[start : start + size].tofile(folder / str(number))
        parts.append(Part(folder / str(number), size))
        start += size
    if len(parts) == 1:
        return np.memmap(parts[0].path, np.float32, "r", shape=values.shape)
    return Stacked(parts, WIDTH)


@pytest.fixture(scope="module", params=["all", "four fifths"])
def chosen(request, values):
    """Return the indices of the rows to fit on: all, or about four fifths."""
    return np.flatnonzero(values[:, 0] < {"all": np.inf, "four fifths": 1.3}[request.param])


def assert_equal_moments(a, b):
    assert a.count == b.count and a.fourth == b.fourth
    for name, array in a.arrays().items():
        np.testing.assert_array_equal(array, b.arrays()[name])


@pytest.mark.parametrize("of", [moments_of, unit_moments])
def test_moments_by_blocks_equal_those_of_one_pass_bit_for_bit(vectors, chosen, of):
    for rows in (chosen, chosen[:1], chosen[[0, -1]], chosen[:BLOCK_ROWS], chosen[: BLOCK_ROWS + 1]):
        assert_equal_moments(of(SharedRows(vectors, rows, compute_block_moments)), of(LOCAL.select_rows(vectors, rows)))


@pytest.mark.parametrize("steps", ["mc,abtt,whitening:6", "normalize,r2,geopres:4,steps=5,int8"])
def test_a_chain_fitted_on_shared_rows_equals_one_fitted_on_local_rows(vectors, chosen, steps):
    shared, here = Chain(parse_steps(steps)), Chain(parse_steps(steps))
    shared.fit(SharedRows(vectors, chosen, compute_block_moments))
    here.fit(LOCAL.select_rows(vectors, chosen))
    assert shared == here


def test_view_through_two_chains_gives_rows_transformed_by_both(vectors, chosen):
    rows = SharedRows(vectors, chosen, compute_block_moments)
    assert isinstance(rows, SharedVectors)  # else fits would read the rows here, and ask no worker for their moments
    one = Chain(parse_steps("r2"), normalize=False).fit(vectors)
    two = Chain(parse_steps("pca:5"), normalize=False).fit(rows.view_through(one))
    behind = rows.view_through(one).view_through(two)
    np.testing.assert_array_equal(behind[:50], two.transform(one.transform(vectors[chosen[:50]])))
    assert behind.shape == behind[:].shape


def test_a_row_that_is_not_finite_is_named_by_its_position_among_the_fitted_rows(values, tmp_path):
    bad = values.copy()
    bad[BLOCK_ROWS + 40, 3] = np.nan
    bad.tofile(tmp_path / "bad")
    vectors = np.memmap(tmp_path / "bad", np.float32, "r", shape=bad.shape)
    with pytest.raises(InputError, match=rf"row {BLOCK_ROWS + 30} "):
        moments_of(SharedRows(vectors, np.arange(10, len(bad)), compute_block_moments))


def test_a_block_of_shared_rows_has_only_the_files_that_hold_its_rows(vectors, values):
    for block in SharedRows(vectors, np.arange(len(values)), compute_block_moments).blocks():
        held = sum(part.rows for part in block.parts)
        assert 0 <= block.rows.min() and block.rows.max() < held
        assert block.parts[0].rows > block.rows[0] and held - block.parts[-1].rows <= block.rows[-1]


@pytest.mark.parametrize("normalize", [True, False])
def test_a_serialized_chain_is_the_same_map_without_metadata(vectors, values, normalize):
    chain = Chain(parse_steps("r2,normalize,geopres:4,steps=0"), normalize).fit(vectors)
    chain.metadata = {"provenance": {"command": "lathe fit --source secret"}}
    again = deserialize_chain(serialize_chain(chain))
    assert again == chain and again.metadata == {} and b"secret" not in serialize_chain(chain)
    np.testing.assert_array_equal(again.transform(values[:9]), chain.transform(values[:9]))
    assert deserialize_chain(serialize_chain(Chain(parse_steps("normalize"), normalize))).normalize == normalize
