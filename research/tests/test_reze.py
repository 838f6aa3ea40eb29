import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from lathe.training.finetuning.loss import info_nce
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.reze import Reze
from research.reze_variants.regularizers import Fading, ShrunkDirections, WithinSources
from research.reze_variants.variants import average_weights

ROWS = np.array([2, 0, 1])


@pytest.fixture
def pairs():
    """Return unit vectors of anchors and positives, and the targets of their relations, of length √2."""
    drawn = [normalize(torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)), dim=1) for seed in range(4)]
    targets = torch.cat(drawn[2:], dim=1).numpy()
    return drawn[0], drawn[1], targets


def test_in_all_directions_the_loss_of_shrunk_directions_is_rezes(pairs):
    anchors, positives, targets = pairs
    plain, some = Reze(RegularizerSettings()), ShrunkDirections(RegularizerSettings())
    plain.targets = some.targets = targets
    some.directions = torch.eye(8)
    assert some.loss(anchors, positives, ROWS) == pytest.approx(plain.loss(anchors, positives, ROWS))
    some.directions = torch.eye(8)[:, :0]
    assert some.loss(anchors, positives, ROWS) == 0


def test_the_weight_fades_to_nothing(pairs):
    anchors, positives, targets = pairs
    fading = Fading(RegularizerSettings(loss_weight=10), batch_size=8)
    fading.targets, fading.steps, fading.done = targets, 4, 0
    weights = []
    for _ in range(4):
        fading.loss(anchors, positives, ROWS)
        weights.append(fading.weight)
    assert weights == [10, 7.5, 5, 2.5]


def test_within_sources_other_sources_hardly_count(pairs):
    anchors, positives, _ = pairs
    within = WithinSources(RegularizerSettings())
    within.sources = np.array([0, 1, 0])
    marked, candidates = within.contrast(anchors, positives[:, None], ROWS)
    own = ROWS != 1
    alone = float(info_nce(anchors[own], positives[own], 0.05)) * 2 / 3  # the third pair has no negatives left
    assert float(info_nce(marked, candidates[:, 0], 0.05)) == pytest.approx(alone, abs=1e-3)


def test_averaging_keeps_a_share_of_the_trained_weights():
    model, base = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    expected = 0.25 * model.weight.detach() + 0.75 * base.weight.detach()
    average_weights(model, base, 0.25)
    assert torch.allclose(model.weight, expected)
