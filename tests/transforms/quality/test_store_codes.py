"""Quantizers of stores, computed without them: their levels, and what a certificate says of them."""

import numpy as np

from lathe.transforms import ITQ, Chain, certify
from lathe.transforms.codes.lloyd_max import build_normal_quantizer
from lathe.transforms.quality.store_codes import TurboQuantizer, measure_store_recall, round_between


def test_levels_of_turboquant_are_those_of_max_for_a_normal_variable():
    """Max, Quantizing for minimum distortion (1960), table I: 2, 4 and 8 levels."""
    for count, positive in [(2, [0.798]), (4, [0.4528, 1.510]), (8, [0.2451, 0.7560, 1.344, 2.152])]:
        levels = build_normal_quantizer(count.bit_length() - 1).levels
        np.testing.assert_allclose(levels[count // 2 :], positive, atol=2e-3)
        np.testing.assert_allclose(levels, -levels[::-1], atol=1e-6)


def test_turboquant_keeps_lengths_and_directions_better_with_more_bits():
    rows = np.random.default_rng(0).normal(size=(200, 32)).astype(np.float32)
    cosines = []
    for bits in (1, 1.5, 2, 4, 8):
        quantizer = TurboQuantizer(rows, bits, scaled=True)
        decoded, rotated = quantizer.encode(rows), quantizer.rotate(rows)
        np.testing.assert_allclose(np.linalg.norm(decoded, axis=1), np.linalg.norm(rows, axis=1), rtol=1e-4)
        cosines.append(((decoded * rotated).sum(axis=1) / np.linalg.norm(rows, axis=1) ** 2).mean())
    assert cosines == sorted(cosines) and 0.7 < cosines[0] and cosines[-1] > 0.999


def test_rounding_clips_and_keeps_the_ends_of_the_range():
    values = np.array([[-2, -1, 0.24, 0.26, 1, 3]], np.float32)
    np.testing.assert_allclose(round_between(values, -1, 1, 4), [[-1, -1, 0, 0.5, 1, 1]])


def test_the_certificate_of_a_rotation_says_what_stores_find_before_and_after():
    rng = np.random.default_rng(0)
    rows = (rng.normal(size=(900, 24)) + 3 * rng.normal(size=24)).astype(np.float32)
    chain = Chain([ITQ(aligned=True)]).fit(rows[:600])
    found = certify(chain, rows[600:], n_fit=600)["store_recall_at_10"]
    assert set(found["before"]) == {"signs", "int8_one_scale", "turboquant_2_bits"}
    assert found["before"]["signs"] + 0.1 < found["after"]["signs"]
    assert found["after"] == measure_store_recall(rows[600:], chain.floats(rows[600:]))
    assert "store_recall_at_10" not in certify(Chain([]).fit(rows[:600]), rows[600:], n_fit=600)
