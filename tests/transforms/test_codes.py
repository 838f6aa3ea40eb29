import copy
import math

import numpy as np
import pytest
import torch

from lathe.transforms import (
    PCA,
    R2,
    ArtifactError,
    Chain,
    InputError,
    Moments,
    ProductCoding,
    StepError,
    TransformCoding,
    parse_steps,
)
from lathe.transforms.codes.allocation import allocate_bits, allocate_equal_bits, lay_out, lay_out_in_whole_bytes
from lathe.transforms.codes.lloyd_max import MAX_BITS, build_normal_quantizer, compute_distortions

WIDTH = 64


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def biased_rows(n, seed=0, bias=0.8, width=WIDTH):
    """Return unit rows with a common direction and a falling spectrum, as embeddings have."""
    rng = np.random.default_rng(seed)
    axes = np.linalg.qr(np.random.default_rng(5).normal(size=(width, width)))[0]
    spread = rng.normal(size=(n, width)) * np.arange(1, width + 1) ** -0.7
    return unit(bias * axes[0] + 0.4 * spread @ axes)


@pytest.fixture(scope="module")
def rows():
    return biased_rows(3000)


@pytest.fixture(scope="module")
def fresh():
    return biased_rows(500, seed=1)


@pytest.fixture(scope="module")
def step(rows):
    return TransformCoding(16).fit(rows)


@pytest.fixture(scope="module", params=[TransformCoding, ProductCoding])
def of_kind(request, rows):
    return request.param(16).fit(rows)


# The quantizer of the normal


@pytest.mark.parametrize("bits", range(1, MAX_BITS + 1))
def test_normal_quantizer_meets_the_lloyd_max_conditions(bits):
    """Thresholds are midpoints of levels, levels the means of their cells. The distortion matches."""
    found = build_normal_quantizer(bits)
    assert found.levels.shape == (2**bits,)
    np.testing.assert_allclose(found.thresholds, (found.levels[1:] + found.levels[:-1]) / 2, atol=1e-12)
    edges = np.concatenate([[-9], found.thresholds, [9]])
    for i, level in enumerate(found.levels):
        x = np.linspace(edges[i], edges[i + 1], 20_001)
        density = np.exp(-(x**2) / 2)
        assert abs(np.trapezoid(x * density, x) / np.trapezoid(density, x) - level) < 1e-5
    grid = np.linspace(-9, 9, 400_001)
    nearest = found.levels[np.searchsorted(found.thresholds, grid)]
    error = np.trapezoid((grid - nearest) ** 2 * np.exp(-(grid**2) / 2), grid) / math.sqrt(2 * math.pi)
    assert error == pytest.approx(found.distortion, rel=1e-4)


# Bits


@pytest.mark.parametrize("seed", range(5))
def test_allocate_bits_is_optimal_against_moving_any_single_bit(seed):
    """More variance never gets fewer bits, and all bits are allocated."""
    variances = np.random.default_rng(seed).exponential(size=30) ** 2
    bits = allocate_bits(variances, 80)
    assert bits.sum() == 80
    table = np.append(compute_distortions(), 0)
    kept = variances * (table[np.maximum(bits - 1, 0)] - table[bits])
    gained = np.where(bits < MAX_BITS, variances * (table[bits] - table[bits + 1]), 0)
    assert kept[bits > 0].min() >= gained.max()
    assert (np.diff(bits[np.argsort(-variances)]) <= 0).all()


def test_bit_allocation_gives_no_bits_to_coordinates_without_variance():
    bits = allocate_bits(np.array([1.0, 0, 2, 0]), 40)
    np.testing.assert_array_equal(bits, [8, 0, 8, 0])
    np.testing.assert_array_equal(allocate_equal_bits(np.array([1.0, 0, 2, 3]), 16, 4), [4, 0, 4, 4])


@pytest.mark.parametrize("seed", range(30))
def test_lay_out_in_whole_bytes_puts_each_coordinate_in_one_byte_without_overlap(seed):
    """It fills every bit and moves at most 16 bits of the wanted allocation."""
    rng = np.random.default_rng(seed)
    octets = int(rng.integers(1, 40))
    variances = rng.exponential(size=200) ** rng.uniform(0.5, 4)
    wanted = allocate_bits(variances, 8 * octets)
    layout = lay_out_in_whole_bytes(wanted, variances, octets)
    used = np.zeros((octets, 8), int)
    for bits, octet, shift in zip(layout.bits, layout.octets, layout.shifts, strict=True):
        assert shift + bits <= 8
        used[octet, shift : shift + bits] += 1
    assert (used == 1).all(), "200 coordinates fill every bit"
    assert len(set(layout.coordinates)) == len(layout.coordinates)
    assert (np.diff(layout.bits) <= 0).all()
    assert np.abs(layout.bits - wanted[layout.coordinates]).sum() <= 16, "few bits move to where they fit"


def test_coordinates_cross_byte_boundaries_where_whole_bytes_would_waste_bits(rows, fresh, monkeypatch):
    """Such codes err less, score, recode and shorten as others do, and have no product centroids."""
    wanted = np.full(WIDTH, 6)
    variances = np.ones(WIDTH)
    layout = lay_out(wanted, variances, 48)
    np.testing.assert_array_equal(layout.bits, wanted)
    starts = 8 * layout.octets + layout.shifts
    np.testing.assert_array_equal(starts, 6 * np.arange(WIDTH))
    step = TransformCoding(48, 0).fit(rows)
    assert (step.layout[0] + step.layout[2] > 8).any()
    codes = step.transform(fresh)
    decoded = step.inverse_transform(codes)
    error = np.square(decoded - fresh).sum(1).mean()
    with monkeypatch.context() as patched:
        patched.setattr("lathe.transforms.codes.allocation.MAX_EXCESS", np.inf)
        whole = TransformCoding(48, 0).fit(rows)
    assert (whole.layout[0] + whole.layout[2] <= 8).all()
    assert error < 0.7 * np.square(whole.inverse_transform(whole.transform(fresh)) - fresh).sum(1).mean()
    np.testing.assert_allclose(step.score(fresh[:2], codes, step.norm_factors(codes)), fresh[:2] @ decoded.T, atol=1e-5)
    np.testing.assert_array_equal(step.recode(decoded), codes)
    short = step.shorten(20)
    found = short.inverse_transform(np.ascontiguousarray(codes[:, :20]))
    assert np.square(found - fresh).sum(1).mean() < np.square(rows.mean(0) - fresh).sum(1).mean() / 2
    with pytest.raises(InputError, match="coordinates cross bytes"):
        step.product_centroids()


# Encoding and scoring


def test_code_scores_equal_inner_products_with_the_decoded_vectors(of_kind, fresh):
    step = of_kind
    codes = step.transform(fresh)
    assert codes.shape == (500, 16)
    assert codes.dtype == np.uint8
    decoded = step.inverse_transform(codes)
    queries = biased_rows(40, seed=2)
    np.testing.assert_allclose(step.score(queries, codes), queries @ decoded.T, atol=1e-5)
    np.testing.assert_allclose(
        step.score(queries[:2], codes, step.norm_factors(codes)), queries[:2] @ decoded.T, atol=1e-5
    )
    np.testing.assert_allclose(step.score_codes(codes[:30], codes), decoded[:30] @ decoded.T, atol=1e-5)


def test_decoded_norms_are_those_of_the_decoded_vectors(rows, fresh, of_kind):
    some = fresh.copy()
    some[3] = 0
    for step in (of_kind, TransformCoding(16, restore_norm=False).fit(rows)):
        codes = step.transform(some)
        expected = np.linalg.norm(step.inverse_transform(codes), axis=1)
        np.testing.assert_allclose(step.decoded_norms(codes), expected, atol=1e-5)
        np.testing.assert_allclose(step.decoded_norms(torch.from_numpy(codes)), expected, atol=1e-5)
        assert expected[3] == 0


def test_scores_are_those_of_the_present_fit_and_take_no_part_in_the_state(rows, fresh):
    step, queries = TransformCoding(16).fit(rows), biased_rows(5, seed=2)
    names = list(step.state_dict())
    step.score(queries, step.transform(fresh))
    assert list(step.state_dict()) == names
    for changed in (step.fit(rows * rows[:, :1]), copy.deepcopy(step).double()):
        codes = changed.transform(fresh)
        expected = queries @ changed.inverse_transform(codes).T
        np.testing.assert_allclose(changed.score(queries, codes), expected, atol=1e-5)


def test_codes_of_rows_of_equal_norm_decode_to_that_norm(rows, fresh):
    for length in (1.0, 7.0):
        step = TransformCoding(8).fit(rows * length)
        assert float(step.norm) == pytest.approx(length, rel=1e-5)
        decoded = step.inverse_transform(step.transform(fresh * length))
        np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), length, rtol=1e-5)
    plain = copy.deepcopy(step)
    plain.norm = torch.zeros(1)
    found = plain.inverse_transform(plain.transform(fresh * 7))
    assert np.linalg.norm(found, axis=1).mean() < 6.95, "cells are represented by their means, which are shorter"


def test_codes_weighted_by_queries_have_a_tenth_of_the_score_error_at_most(rows, fresh):
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))[0]
    queries = unit(rng.normal(size=(2000, WIDTH)) * np.arange(1, WIDTH + 1) ** -1.5 @ axes)

    def score_error(step):
        exact = queries[:200] @ fresh.T
        return np.square(step.score(queries[:200], step.transform(fresh)) - exact).mean()

    plain, own, weighted = (
        score_error(made)
        for made in (
            TransformCoding(8, weighting=0, restore_norm=False).fit(rows, queries=queries),
            TransformCoding(8, weighting=1, restore_norm=False).fit(rows),
            TransformCoding(8, weighting=1, restore_norm=False).fit(rows, queries=queries),
        )
    )
    assert weighted < 0.1 * plain
    assert weighted < 0.1 * own


def test_codes_fitted_on_moments_of_rows_and_queries_equal_codes_fitted_on_the_vectors(rows):
    queries = biased_rows(300, seed=4, bias=0.2)
    of_rows = TransformCoding(12, 0.7).fit(rows, queries=queries)
    of_moments = TransformCoding(12, 0.7).fit(Moments.from_vectors(rows), queries=Moments.from_vectors(queries))
    for name, buffer in of_rows.named_buffers():
        torch.testing.assert_close(of_moments.get_buffer(name), buffer, rtol=1e-5, atol=1e-6)
    assert int(of_rows.query_count) == 300
    assert int(TransformCoding(12).fit(rows).query_count) == 0


def test_chain_fit_transforms_queries_by_the_steps_before_the_codes(rows):
    """Queries of other dimensions, or for a chain without codes, are refused."""
    queries = biased_rows(300, seed=4, bias=0.2)
    chain = Chain(parse_steps("r2,codes:12")).fit(rows, queries=queries)
    before = Chain([R2()]).fit(rows)
    alone = TransformCoding(12).fit(before.transform(rows), queries=before.transform(queries))
    np.testing.assert_allclose(chain.quantizer.decoder, alone.decoder, atol=1e-4)
    with pytest.raises(InputError, match="no step is fitted on queries"):
        Chain([R2()]).fit(rows, queries=queries)
    with pytest.raises(InputError, match="queries of 3 dimensions cannot weight"):
        TransformCoding(12).fit(rows, queries=np.ones((5, 3)))


@pytest.mark.parametrize("fit", ["codes:16", "codes:16,bits=3", "product_codes:8,iterations=3"])
def test_adjusted_levels_bring_every_decoded_vector_as_near_or_nearer(rows, fresh, fit):
    cosines, codes = [], []
    for switch in ("true", "false"):
        step = parse_steps(f"{fit},adjust_levels={switch}")[0].fit(rows)
        codes.append(step.transform(fresh))
        cosines.append((step.inverse_transform(codes[-1]) * fresh).sum(1))
    assert 0.01 < (codes[0] != codes[1]).mean() < 0.5
    assert (cosines[0] > cosines[1] - 1e-6).all() and cosines[0].mean() > cosines[1].mean() + 1e-4


def test_with_weights_adjusted_levels_bring_the_scores_of_queries_nearer_on_average(rows, fresh):
    errors = []
    for switch in ("true", "false"):
        step = parse_steps(f"codes:16,weighting=0.5,adjust_levels={switch}")[0].fit(rows)
        errors.append(np.square(rows @ (step.inverse_transform(step.transform(fresh)) - fresh).T).mean())
    assert errors[0] < 0.995 * errors[1]


def test_levels_stay_rounded_where_norms_are_not_restored(rows, fresh):
    for parameters, data in (({"restore_norm": False}, rows), ({}, rows * rows[:, :1])):
        step = TransformCoding(16, **parameters).fit(data)
        rounded = step.round_coordinates(step.coordinates(torch.from_numpy(fresh)))
        np.testing.assert_array_equal(step.transform(fresh), rounded.numpy())


def test_a_vector_that_no_level_comes_near_has_a_code(step):
    """Orthogonal to all axes, and with numbers at the ends of float32."""
    axes = step.decoder.numpy()
    away = unit(np.linalg.svd(axes)[2][-1:])
    odd = np.concatenate([away, 1e30 * away, 1e-30 * away, -step.mean.numpy()[None]]).astype(np.float32)
    assert step.transform(odd).any(axis=1).all()


def test_stored_codes_decode_to_the_vectors_that_they_were_written_for():
    """Figures of the first version of the format."""
    step = TransformCoding(2)
    step.mean = torch.tensor([0.5, 0.3, 0.0, 0.1])
    step.decoder = torch.tensor([[0.4, 0, 0, 0], [0, 0.3, 0, 0], [0, 0, 0.2, 0.1]])
    step.encoder = torch.linalg.pinv(step.decoder).T.contiguous()
    step.layout, step.norm = torch.tensor([[6, 5, 3], [0, 1, 1], [0, 0, 5]]), torch.ones(1)
    step.query_count = torch.zeros(1, dtype=torch.int64)
    codes = np.array([[0, 0], [1, 0], [63, 255], [17, 201], [40, 96]], np.uint8)
    expected = [
        [0, 0, 0, 0],
        [-0.6902088, -0.5982474, -0.3952036, -0.09760179],
        [0.83597875, 0.5194526, 0.09655295, 0.14827648],
        [-0.50485384, -0.35726482, 0.65827465, 0.42913732],
        [0.7309798, -0.6764383, -0.04892957, 0.07553522],
    ]
    np.testing.assert_allclose(step.inverse_transform(codes), expected, atol=1e-6)


def test_shortened_codes_decode_a_prefix_of_the_bytes(rows, fresh):
    """The error falls with more bytes, and is at least that of codes fitted for that size."""
    step = TransformCoding(32).fit(rows)
    codes = step.transform(fresh)
    errors = []
    for octets in (4, 8, 16, 32):
        short = step.shorten(octets)
        found = short.inverse_transform(codes[:, :octets].copy())
        errors.append(np.square(found - fresh).sum(1).mean())
        own = TransformCoding(octets).fit(rows)
        assert np.square(own.inverse_transform(own.transform(fresh)) - fresh).sum(1).mean() <= errors[-1] * 1.01
    assert (np.diff(errors) < 0).all()
    assert errors[0] < np.square(rows.mean(0) - fresh).sum(1).mean()
    with pytest.raises(InputError, match="cannot be shortened to 33"):
        step.shorten(33)


def test_faiss_product_quantizer_with_the_codes_centroids_finds_the_same_neighbours(of_kind, fresh):
    faiss = pytest.importorskip("faiss")
    step = of_kind
    codes, queries = step.transform(fresh), biased_rows(20, seed=2)
    index = faiss.IndexPQ(16 * 8, 16, 8, faiss.METRIC_INNER_PRODUCT)
    centroids, place = step.product_centroids()
    faiss.copy_array_to_vector(centroids.numpy().ravel(), index.pq.centroids)
    index.is_trained = True
    index.add_sa_codes(codes)
    encoded = np.zeros((20, 128), np.float32)
    encoded[:, place.numpy()] = step.encode_queries(queries)[:, :-1]
    found = index.search(encoded, 10)[1]
    plain = copy.deepcopy(step)
    plain.norm = torch.zeros(1)
    expected = np.argsort(-plain.score(queries, codes), axis=1)[:, :10]
    assert (found == expected).mean() > 0.98


# What is wrong with the data


def test_codes_clip_vectors_far_outside_the_fit_and_clipped_share_counts_them(step, fresh):
    assert step.clipped_share(fresh) < 1e-3
    assert step.clipped_share(fresh * 50) > 0.3
    far = step.inverse_transform(step.transform(fresh * 1e6))
    assert np.isfinite(far).all()
    np.testing.assert_array_equal(step.transform(step.inverse_transform(step.transform(fresh * 50))).shape, (500, 16))


@pytest.mark.parametrize("octets", [1, 8, 40, 64])
def test_recode_of_decoded_vectors_returns_the_same_codes(rows, fresh, octets):
    steps = [TransformCoding(octets).fit(rows), TransformCoding(octets).fit(rows * rows[:, :1])]
    if octets < WIDTH // 2:
        steps.append(ProductCoding(octets, iterations=3).fit(rows))
    for step in steps:
        some = fresh.copy()
        some[3] = 0
        codes = step.transform(some)
        found = step.recode(step.inverse_transform(codes))
        assert (found != codes).any(axis=1).mean() <= (0.01 if isinstance(step, ProductCoding) else 0.002)
        np.testing.assert_array_equal(found[3], 0)
        assert isinstance(step.recode(torch.from_numpy(some)), torch.Tensor)


def test_codes_fitted_on_few_rows_warn_of_unused_bytes(rows):
    step = TransformCoding(16).fit(rows[:5])
    assert step.learned_directions <= 4
    assert step.fit_warnings() == ["codes uses 4 of 16 bytes: the vectors vary in too few directions"]
    assert not TransformCoding(16).fit(rows).fit_warnings()


def test_only_zero_vectors_have_the_all_zero_code(rows):
    """They decode to zero and score zero."""
    step = TransformCoding(1).fit(rows)
    some = biased_rows(4000, seed=9)
    some[::7] = 0
    codes = step.transform(some)
    assert not codes[::7].any()
    assert codes[some.any(axis=1)].any(axis=1).all()
    assert not step.inverse_transform(codes)[::7].any()
    assert not step.score(some[1:3], codes)[:, ::7].any()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"bytes": 0}, "bytes must be a whole number from 1"),
        ({"bytes": 4, "weighting": 1.5}, "weighting must be a number from 0 to 1"),
        ({"bytes": 4, "bits": 9}, "bits must be a whole number from 1 to 8, got 9"),
        ({"bytes": 4, "bits": 0}, "bits must be a whole number from 1 to 8, got 0"),
        ({"bytes": 4, "rotation": "hadamard"}, "rotation must be none or random"),
        ({"bytes": 4, "codec_version": 2}, "codec version 2; this Lathe reads up to 1: upgrade it"),
        ({"bytes": 65}, "codes of 65 bytes needs more dimensions than 64: 8 bits each fill 64 bytes"),
        ({"bytes": 9, "bits": 1}, "codes of 9 bytes needs more dimensions than 64: 1 bits each fill 8 bytes"),
    ],
)
def test_codes_refuse_invalid_byte_budgets_and_parameters(parameters, message, rows):
    with pytest.raises(StepError, match=message):
        TransformCoding(**parameters).fit(rows)


def test_loading_a_chain_of_a_newer_codec_version_is_refused_and_advises_an_upgrade(rows, tmp_path, monkeypatch):
    monkeypatch.setattr("lathe.transforms.codes.transform_coding.CODEC_VERSION", 2)
    Chain([TransformCoding(8, codec_version=2)]).fit(rows).save(tmp_path / "chain")
    monkeypatch.undo()
    with pytest.raises(ArtifactError, match="upgrade it"):
        Chain.load(tmp_path / "chain")


def test_score_refuses_codes_of_another_shape_or_dtype(step, fresh):
    codes = step.transform(fresh)
    for wrong in (codes[:, :8], codes.astype(np.int64), codes[0]):
        with pytest.raises(InputError, match=r"codes must be uint8 of shape \(n, 16\)"):
            step.score(fresh[:1], wrong)


@pytest.mark.parametrize("bits", range(1, MAX_BITS + 1))
def test_equal_bits_of_any_number_are_those_of_all_leading_coordinates(rows, fresh, bits):
    """The values of coordinates are the nearest levels of the quantizer of so many bits."""
    step = TransformCoding(6, bits=bits, restore_norm=False).fit(rows)
    assert step.layout[0].tolist() == [bits] * (48 // bits)
    codes = step.transform(fresh)
    assert codes.shape == (500, 6)
    y, values = step.coordinates(torch.from_numpy(fresh)), step.inverse().decode_coordinates(torch.from_numpy(codes))
    levels = torch.from_numpy(build_normal_quantizer(bits).levels).float()
    nearest = levels[(y.unsqueeze(2) - levels).abs().argmin(2)]
    assert (values - nearest).abs().gt(1e-5).float().mean() < 1e-3


def test_random_rotation_evens_out_the_variances_of_coordinates_with_equal_bits(rows, fresh):
    """The rotated axes span the leading principal axes and depend on the seed alone."""
    step = TransformCoding(8, weighting=0, bits=2, rotation="random", seed=3).fit(rows)
    assert step.layout[0].tolist() == [2] * 32
    lengths = step.decoder.norm(dim=1)
    assert lengths.max() / lengths.min() < 4
    plain = TransformCoding(8, weighting=0, bits=2).fit(rows)
    assert plain.decoder.norm(dim=1).max() / plain.decoder.norm(dim=1).min() > 6
    # Both span the leading principal axes.
    np.testing.assert_allclose(step.decoder @ PCA(32).fit(rows).weight.T, step.decoder @ PCA().fit(rows).weight[:32].T)
    again = TransformCoding(8, weighting=0, bits=2, rotation="random", seed=3).fit(rows)
    np.testing.assert_array_equal(again.transform(fresh), step.transform(fresh))


# Learned codebooks


@pytest.fixture(scope="module")
def squared():
    """Return rows whose coordinates are not normal, so that there is something to learn."""
    return unit(biased_rows(3000) ** 2)


@pytest.fixture(scope="module")
def learned(squared):
    return ProductCoding(8, adjust_levels=False).fit(squared[:2500])


def mean_error(step, rows):
    return np.square(step.inverse_transform(step.transform(rows)) - rows).sum(1).mean()


def test_learned_codebooks_decode_new_rows_with_less_error_than_the_grid(squared, learned):
    grid = TransformCoding(8, adjust_levels=False).fit(squared[:2500])
    assert mean_error(learned, squared[2500:]) < 0.95 * mean_error(grid, squared[2500:])


def test_each_code_is_that_of_the_nearest_centroids(squared, learned):
    rows, deviations = squared[2500:], learned.deviations.numpy()[:, None]
    codes = learned.transform(rows)
    y = learned.coordinates(torch.from_numpy(rows)).numpy() * deviations
    centroids, octets = learned.centroids.numpy() * deviations, learned.layout[1].numpy()
    for octet in range(7):  # the last byte leaves out the code 0
        own = octets == octet
        distances = np.square(y[own].T[:, None] - centroids[own].T).sum(2)
        found = np.take_along_axis(distances, codes[:, octet, None].astype(int), 1)[:, 0]
        np.testing.assert_allclose(found, distances.min(1), atol=1e-6)


def test_a_prefix_of_a_learned_code_is_a_coarser_code(squared, learned):
    codes, errors = learned.transform(squared), []
    for octets in (2, 4, 8):
        decoded = learned.shorten(octets).inverse_transform(np.ascontiguousarray(codes[:, :octets]))
        errors.append(np.square(decoded - squared).sum(1).mean())
    assert errors[0] > errors[1] > errors[2]


def test_learned_codebooks_refuse_moments_few_rows_and_a_byte_for_each_coordinate(rows):
    with pytest.raises(InputError, match="fitted on rows, not on moments"):
        ProductCoding(8).fit(Moments.from_vectors(rows))
    with pytest.raises(InputError, match="at least 256 rows"):
        ProductCoding(8).fit(rows[:255])
    with pytest.raises(InputError, match="a byte of its own"):
        ProductCoding(64).fit(rows)
