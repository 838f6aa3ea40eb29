import pytest

from lathe.transforms import (
    ABTT,
    PCA,
    R2,
    Binary,
    Chain,
    GeoPres,
    Int8,
    Normalize,
    Procrustes,
    RandomDirection,
    StepError,
    Truncation,
    Whitening,
)
from lathe.transforms.base import Signature


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([R2(), Whitening()], "1 directions without variance"),
        ([R2(), RandomDirection(), Normalize(), Whitening()], "2 directions without variance"),
        ([ABTT(3), Whitening()], "3 directions without variance"),
        ([ABTT(3, literal=True), Whitening()], "2 directions without variance"),
        ([Whitening(form="zca"), Int8(), Binary()], "int8 outputs codes, which binary cannot follow"),
        ([Int8(), Int8()], "quantize once, at the end"),
        ([Binary(), Normalize()], "binary outputs codes"),
        ([GeoPres(12), GeoPres(12)], "more than 12 dimensions, not 12"),
        ([PCA(8), PCA(9)], "at least 9 dimensions, not 8"),
        ([Truncation(8), Whitening(16)], "at least 16 dimensions, not 8"),
        ([Truncation(1), R2()], "at least 2 dimensions"),
        ([Truncation(3), ABTT(3)], "removes 3 directions: it needs vectors of more dimensions than 3"),
    ],
)
def test_chain_refuses_an_impossible_order_of_steps_when_it_is_built(steps, reason):
    with pytest.raises(StepError, match=reason):
        Chain(steps)


@pytest.mark.parametrize(
    "steps",
    [
        [R2(), Whitening(8)],
        [R2(), Whitening(rcond=1e-6)],
        [R2(), Whitening(shrinkage="ledoit-wolf")],
        [R2(), Whitening(epsilon=0.1)],
        [R2(), Whitening(power=0)],
        [R2(), PCA(8), Whitening()],
        [R2(), Whitening(8), GeoPres(4), Int8()],
        [Whitening(), R2()],
        [PCA(8), PCA(8)],
        [Procrustes(), PCA(8)],
    ],
)
def test_chain_accepts_a_possible_order_of_steps(steps):
    assert len(Chain(steps)) == len(steps)


def test_signature_refusal_of_whitening_names_the_largest_size_for_known_dimensions():
    with pytest.raises(StepError, match="whitening:23 or fewer"):
        Chain([R2(), Whitening(24)]).signature(24)
    assert Chain([R2(), Whitening(23)]).signature(24) == Signature(23)


@pytest.mark.parametrize("dimensions", [8, 22, 23])
def test_signature_of_pca_to_at_most_the_rank_has_no_empty_directions(dimensions):
    assert Chain([R2(), PCA(dimensions)]).signature(24) == Signature(dimensions, 0)


def test_signature_counts_directions_without_variance_that_a_reduction_keeps():
    assert Chain([ABTT(4), PCA(22)]).signature(24) == Signature(22, 2)
    assert Chain([Whitening(20, form="zca")]).signature(24) == Signature(24, 4)
