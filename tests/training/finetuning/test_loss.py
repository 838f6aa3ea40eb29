import math

import numpy as np
import pytest
import torch
from torch import nn

from lathe.training.encoder.loading import load_model
from lathe.training.encoder.model_checks import find_first_position
from lathe.training.encoder.unpadding import enable_unpadded
from lathe.training.finetuning.loss import CachedContrastiveLoss, ContrastiveLoss, NonFiniteLossError
from lathe.training.finetuning.regularizers.regularizer import NoRegularizer, RegularizerSettings
from lathe.training.finetuning.regularizers.reze import Reze
from lathe.training.finetuning.trainer import assign_negative_ids, assign_text_ids

ANCHORS = ["rain over the hills", "the bank", "a lathe turns wood or metal against a tool", "spring"]
POSITIVES = ["wet", "money is kept there, or lent to others at interest", "a machine", "a season of rain"]
NEGATIVES = [("dry", "a desert without any rain for years"), (), ("a drill",), ("wet",)]
NO = NoRegularizer()


@pytest.fixture(scope="module")
def model(tiny_model):
    """Return the tiny model without dropout."""
    from lathe.training.encoder.spec import EncoderSpec

    return load_model(EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32"), "cpu").float().eval()


@pytest.fixture
def gradients(model):
    """Return a function that computes a loss of four pairs, three with hard negatives, and each weight's gradient."""

    def measure(loss):
        model.zero_grad(set_to_none=True)
        order = [2, 0, 1, 3]
        columns = [[ANCHORS[i] for i in order], [POSITIVES[i] for i in order]]
        columns += [[text for i in order for text in NEGATIVES[i]]] if loss.negative_ids is not None else []
        value = loss([dict(model.preprocess(texts)) for texts in columns], torch.tensor(order))
        value.backward()
        return float(value.detach()), {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}

    return measure


def unit(rows):
    rows = torch.tensor(rows, dtype=torch.float32)
    return rows / rows.norm(dim=1, keepdim=True)


def pull(targets, weight, offsets=None, sources=None):
    """Return a REZE regularizer with these targets."""
    found = Reze(RegularizerSettings(loss_weight=weight))
    found.targets, found.offsets, found.sources = targets, offsets, sources
    return found


def compute_loss(anchors, positives, labels=None, regularizer=NO, **given):
    """Return the contrastive loss of embeddings, and its components."""
    loss = ContrastiveLoss(nn.Identity(), given.pop("temperature", 1.0), regularizer, **given)
    labels = torch.arange(len(anchors)) if labels is None else torch.tensor(labels)
    return loss.compute_loss(torch.as_tensor(anchors), torch.as_tensor(positives), labels), loss.components


def test_contrastive_loss_is_the_cross_entropy_of_cosines_divided_by_the_temperature():
    anchors, positives = torch.tensor([[2.0, 0], [0, 3]]), torch.tensor([[5.0, 0], [3, 4]])
    # Cosines: (1, 0.6) and (0, 0.8); over τ = 1/2: (2, 1.2) and (0, 1.6).
    expected = (math.log(1 + math.exp(1.2 - 2)) + math.log(1 + math.exp(0 - 1.6))) / 2
    total, components = compute_loss(anchors, positives, temperature=0.5)
    assert float(total) == pytest.approx(expected, abs=1e-6)
    assert components.pop_means() == {"contrastive": pytest.approx(expected, abs=1e-6)}


def test_the_regularizer_is_1_minus_the_cosine_of_relation_and_target():
    anchors, positives = torch.tensor([[2.0, 0], [0, 1]]), torch.tensor([[0.0, 3], [0, 1]])
    # Relations of unit vectors: (1, 0, 0, 1) and (0, 1, 0, 1), √2 long. Rows 5 and 2 of the targets are theirs.
    targets = np.zeros((6, 4), np.float32)
    targets[5], targets[2] = (2, 0, 0, 0), (0, -1, 1, -1)
    expected = ((1 - 1 / math.sqrt(2)) + (1 + 2 / math.sqrt(6))) / 2
    plain, _ = compute_loss(anchors, positives)
    total, components = compute_loss(anchors, positives, [5, 2], pull(targets, 0.3))
    assert components.pop_means()["regularizer"] == pytest.approx(expected, abs=1e-6)
    assert float(total) == pytest.approx(float(plain) + 0.3 * expected, abs=1e-6)


def test_contrastive_loss_leaves_out_negatives_that_share_a_text_with_the_pair():
    texts = assign_text_ids(["a", "b", "a", "d"], ["x", "x", "y", "z"])
    generator = np.random.default_rng(1)
    anchors, positives = (unit(generator.normal(size=(4, 3))) for _ in range(2))
    cosines = (anchors @ positives.T).double().numpy()
    # Pair 0 shares its positive with 1 and its anchor with 2; pair 3 shares nothing.
    negatives = {0: [3], 1: [2, 3], 2: [1, 3], 3: [0, 1, 2]}
    expected = np.mean(
        [np.log(np.exp(cosines[i, [i, *others]]).sum()) - cosines[i, i] for i, others in negatives.items()]
    )
    masked, _ = compute_loss(anchors, positives, text_ids=texts)
    assert float(masked) == pytest.approx(expected, abs=1e-6)
    assert float(masked) < float(compute_loss(anchors, positives)[0])


def test_offsets_are_subtracted_for_the_contrastive_loss_and_not_for_the_regularizer():
    generator = np.random.default_rng(6)
    anchors, positives = (unit(generator.normal(size=(4, 3))) for _ in range(2))
    offsets, targets = (generator.normal(size=(rows, 6)).astype(np.float32) * 0.3 for rows in (2, 9))
    sources, labels = np.array([0, 1, 1, 0, 0, 1, 0, 1, 1]), [8, 0, 3, 2]
    of_pairs = torch.from_numpy(offsets[sources[labels]])
    plain, plain_parts = compute_loss(anchors, positives, labels, pull(targets, 0.5))
    found, parts = compute_loss(anchors, positives, labels, pull(targets, 0.5, offsets, sources))
    moved, _ = compute_loss(anchors - of_pairs[:, :3], positives - of_pairs[:, 3:])
    regularizer = plain_parts.pop_means()["regularizer"]
    assert parts.pop_means() == {
        "contrastive": pytest.approx(float(moved), abs=1e-6),
        "regularizer": pytest.approx(regularizer, abs=1e-6),
    }
    assert float(found) == pytest.approx(float(moved) + 0.5 * regularizer, abs=1e-6)
    assert float(found) != pytest.approx(float(plain), abs=1e-3)


def test_contrastive_loss_of_a_batch_without_hard_negatives_equals_that_of_pairs():
    generator = np.random.default_rng(1)
    anchors, positives = (unit(generator.normal(size=(3, 4))) for _ in range(2))
    numbers = np.array([[10], [-1], [-1], [-1]])
    plain = ContrastiveLoss(nn.Identity(), 0.5, NO).compute_loss(anchors, positives, torch.arange(3))
    mixed = ContrastiveLoss(nn.Identity(), 0.5, NO, negative_ids=numbers).compute_loss(
        anchors, positives, torch.tensor([1, 2, 3])
    )
    assert float(mixed) == pytest.approx(float(plain), abs=1e-6)


def test_contrastive_loss_leaves_out_a_hard_negative_equal_to_the_positive():
    texts = assign_text_ids(ANCHORS, POSITIVES)
    numbers = assign_negative_ids(POSITIVES, NEGATIVES)
    assert numbers.shape == (4, 2) and numbers[3, 0] == texts[0, 1] and (numbers[1] == -1).all()
    generator = np.random.default_rng(2)
    anchors, positives, negatives = (unit(generator.normal(size=(4, 5))) for _ in range(3))
    loss = ContrastiveLoss(nn.Identity(), 1.0, NO, negative_ids=numbers, text_ids=texts)
    found = loss.compute_loss(anchors, positives, torch.arange(4), negatives)
    cosines = (anchors @ torch.cat([positives, negatives]).T).double().numpy()
    kept = np.ones((4, 8), bool)
    kept[0, 7] = False  # the fourth pair's negative is the first one's positive
    expected = np.mean([math.log(np.exp(cosines[i, kept[i]]).sum()) - cosines[i, i] for i in range(4)])
    assert float(found) == pytest.approx(expected, abs=1e-6)
    assert assign_negative_ids(POSITIVES, [(), (), (), ()]) is None


@pytest.mark.parametrize("other", ["cached by 1", "cached by 3", "unpadded"])
def test_cached_and_unpadded_losses_with_hard_negatives_have_the_gradients_of_the_plain_loss(gradients, model, other):
    targets = np.random.default_rng(3).normal(size=(4, 32)).astype(np.float32)
    offsets = np.random.default_rng(4).normal(size=(2, 32)).astype(np.float32) * 0.1
    options = {
        "regularizer": pull(targets, 0.7, offsets, np.array([0, 1, 1, 0])),
        "text_ids": assign_text_ids(ANCHORS, POSITIVES),
        "negative_ids": assign_negative_ids(POSITIVES, NEGATIVES),
    }
    plain, expected = gradients(ContrastiveLoss(model, 0.05, **options))
    if other == "unpadded":
        transformer = model[0].auto_model
        before = transformer.config._attn_implementation
        enable_unpadded(transformer)
        found, changed = gradients(
            ContrastiveLoss(model, 0.05, first_position=find_first_position(transformer), **options)
        )
        transformer.set_attn_implementation(before)
    else:
        found, changed = gradients(CachedContrastiveLoss(int(other[-1]), model, 0.05, **options))
    assert found == pytest.approx(plain, abs=1e-5)
    for name, gradient in expected.items():
        torch.testing.assert_close(changed[name], gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_the_loss_is_computed_in_float32_under_bfloat16_autocast():
    generator = np.random.default_rng(5)
    anchors, positives = (unit(generator.normal(size=(8, 16))).bfloat16() for _ in range(2))
    targets = generator.normal(size=(8, 32)).astype(np.float32)
    outside, _ = compute_loss(anchors.float(), positives.float(), None, pull(targets, 1.0), temperature=0.05)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = compute_loss(anchors, positives, None, pull(targets, 1.0), temperature=0.05)
    assert inside.dtype == torch.float32
    assert float(inside) == float(outside)


@pytest.mark.parametrize("kind", [ContrastiveLoss, CachedContrastiveLoss])
def test_embeddings_that_are_not_finite_raise_non_finite_loss_error(kind):
    loss = kind(*([2] if kind is CachedContrastiveLoss else []), nn.Identity(), 0.05, NO)
    anchors = torch.ones(3, 4)
    anchors[1, 2] = float("nan")
    anchors.requires_grad_()
    with pytest.raises(NonFiniteLossError, match="the loss became"):
        loss.compute_loss(anchors, torch.ones(3, 4), torch.arange(3))
    assert loss.components.pop_means() == {}
