import numpy as np
import pytest

from lathe.transforms import ContrastiveAlignment, InputError, PairedMoments, Procrustes
from lathe.transforms.quality import cross_recall_at_k

WIDTH, OTHER = 16, 10


@pytest.fixture(scope="module")
def pairs(embeddings):
    """Return vectors and targets that are no rotation of them: directions are scaled, and noise is added."""
    rng = np.random.default_rng(3)
    vectors = embeddings(800, WIDTH)
    stretched = vectors @ (rng.normal(size=(WIDTH, OTHER)) * np.logspace(0, 1, OTHER))
    return vectors, (stretched + rng.normal(size=stretched.shape)).astype(np.float32)


def test_training_finds_more_of_the_targets_than_the_orthogonal_map_it_starts_from(pairs):
    vectors, targets = pairs
    trained, orthogonal = (
        step.fit(vectors[:600], targets=targets[:600])
        for step in (ContrastiveAlignment(learning_rate=1e-2, weight_decay=0.0), Procrustes(center=True))
    )
    found, before = (cross_recall_at_k(step.transform(vectors[600:]), targets[600:]) for step in (trained, orthogonal))
    assert found > before + 0.02
    assert trained.training_log.heldout_losses[0] > min(trained.training_log.heldout_losses)
    assert not trained.fit_warnings()


def test_the_orthogonal_map_stays_and_is_warned_of_if_no_trained_map_is_better(embeddings):
    vectors = embeddings(200, WIDTH)
    targets = vectors @ np.linalg.qr(np.random.default_rng(0).normal(size=(WIDTH, WIDTH)))[0]
    step = ContrastiveAlignment(learning_rate=1.0, weight_decay=0.0, steps=10).fit(vectors, targets=targets)
    orthogonal = Procrustes(center=True).fit(vectors, targets=targets)
    np.testing.assert_allclose(step.weight, orthogonal.weight, atol=1e-6)
    assert "no trained map was better" in step.fit_warnings()[0]


def test_weight_decay_draws_the_map_to_the_orthogonal_one(pairs):
    vectors, targets = pairs
    start = Procrustes(center=True).fit(vectors, targets=targets).weight
    weak, strong = (
        ContrastiveAlignment(weight_decay=decay, learning_rate=1e-2, steps=60).fit(vectors, targets=targets).weight
        for decay in (0.0, 100.0)
    )
    assert (strong - start).norm() < 0.5 * (weak - start).norm()


def test_moments_of_pairs_are_refused_because_training_reads_rows(pairs):
    with pytest.raises(InputError, match="fitted on pairs"):
        ContrastiveAlignment().fit(PairedMoments.from_pairs(*pairs))
