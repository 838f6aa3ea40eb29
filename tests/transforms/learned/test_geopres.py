from functools import partial

import numpy as np
import pytest
import torch

from lathe.transforms import GeoPres, Moments, local_spearman, recall_at_k
from lathe.transforms.base import TrainingConfig
from lathe.transforms.learned.descent import Batches
from lathe.transforms.learned.geopres import draw_random_weight
from lathe.transforms.learned.losses import positional_loss
from lathe.transforms.learned.losses.cosine_losses import (
    angular_loss,
    blended_loss,
    compute_starting_losses,
    spearman_loss,
)
from lathe.transforms.statistics import unit_rows


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(900, 40, seed=1)


@pytest.fixture(scope="module")
def heldout(embeddings):
    return embeddings(400, 40, seed=2)


def unit(rows):
    rows = np.asarray(rows, np.float64)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_geopres_spectral_start_matches_its_formula(rows):
    k = 7
    _, singular, directions = np.linalg.svd(unit(rows), full_matrices=False)
    eigenvalues = singular**2 / len(rows)
    expected = directions[:k] * np.sqrt(1 + eigenvalues[k:].sum() / ((k + 2) * eigenvalues[:k]))[:, None]
    expected *= np.sign(expected[np.arange(k), np.abs(expected).argmax(1)])[:, None]
    weight = GeoPres(k).fit(Moments.from_vectors(unit(rows))).weight
    np.testing.assert_allclose(weight, expected, atol=1e-5)


@pytest.mark.release
def test_geopres_default_training_improves_recall_and_local_spearman_on_held_out_rows(rows, heldout):
    start, refined = (GeoPres(10, steps=steps).fit(rows).transform(heldout) for steps in (0, None))
    assert recall_at_k(heldout, refined) > recall_at_k(heldout, start)
    assert local_spearman(heldout, refined) > local_spearman(heldout, start)


def test_geopres_fit_ignores_row_lengths(rows):
    lengths = 10 ** np.random.default_rng(0).uniform(-3, 3, size=(len(rows), 1)).astype(np.float32)
    stretched, plain = (GeoPres(6, steps=5).fit(data).weight for data in (rows * lengths, rows))
    np.testing.assert_allclose(stretched, plain, atol=1e-4)


def test_prefixes_of_a_nested_geopres_have_a_recall_a_tenth_above_truncation(rows, heldout):
    found = GeoPres(16, nested=True, steps=60).fit(rows).transform(heldout)
    for size in (4, 6, 8, 12, 16):
        assert recall_at_k(heldout, found[:, :size]) > recall_at_k(heldout, heldout[:, :size]) + 0.1


def loss_of(kind, weight, rows, start):
    """Return a loss of a map's normalised outputs by name. `blend` is relative to the map `start`."""
    x = torch.from_numpy(unit(rows))
    y, y_start = (unit_rows(x @ w.double().T) for w in (weight, start))
    objectives = {
        "blend": partial(blended_loss, starts=compute_starting_losses(x, [y_start])),
        "positional": partial(positional_loss, scaled=True),
        "angular": angular_loss,
        "spearman": spearman_loss,
    }
    return objectives[kind](x, [y])[0][0]


@pytest.mark.parametrize("kind", ["blend", "positional", "angular", "spearman"])
def test_geopres_trained_for_a_loss_lowers_that_loss_on_held_out_rows(embeddings, kind):
    many, heldout = (embeddings(n, 40, seed, mean=3.0) for n, seed in ((3000, 1), (400, 2)))
    start, refined = (GeoPres(4, loss=kind, steps=steps, batch=128).fit(many).weight for steps in (0, 200))
    assert loss_of(kind, refined, heldout, start) < 0.97 * loss_of(kind, start, heldout, start)


def test_geopres_default_loss_is_blend_for_preset_lathe_and_positional_for_preset_paper(rows):
    for preset, kind in (("lathe", "blend"), ("paper", "positional")):
        silent, said = (GeoPres(6, preset=preset, loss=loss, steps=5).fit(rows) for loss in (None, kind))
        np.testing.assert_array_equal(silent.weight, said.weight)


PLAIN = {
    None: lambda x, y: (torch.pdist(x) - torch.pdist(y)).square().mean(),  # Eq. 1: lengths as they come
    "angular": lambda x, y: (cosines(x) - cosines(y)).square().mean(),
    "spearman": lambda x, y: 1 - correlations(cosines(x), cosines(y)).mean(),
}


def cosines(x):
    x = torch.nn.functional.normalize(x)
    m = len(x)
    return (x @ x.T)[~torch.eye(m, dtype=torch.bool)].view(m, m - 1)


def correlations(a, b):
    a, b = (t - t.mean(1, keepdim=True) for t in (a, b))
    return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))


def train_papers_map(rows, dimensions, config, plain):
    """Train the paper's map in a plain loop and return the last weight, the best by held-out loss, and those losses."""
    weight = draw_random_weight(rows.shape[1], dimensions, 0).requires_grad_()
    batches = Batches(rows, config, 0, torch.device("cpu"))
    optimizer = torch.optim.AdamW([weight], lr=1.0, weight_decay=0.1)
    warm = int(0.1 * config.steps)
    losses, best = [], None
    for step in range(config.steps):
        optimizer.param_groups[0]["lr"] = 0.01 * min(
            (step + 1) / max(warm, 1), (config.steps - step) / (config.steps - warm)
        )
        optimizer.zero_grad()
        x = batches.sample(step)
        plain(x, x @ weight.T).backward()
        optimizer.step()
        if (step + 1) % config.check_every == 0 or step + 1 == config.steps:
            x = batches.heldout()
            losses.append(float(plain(x, x @ weight.T).detach()))
            best = weight.detach().clone() if losses[-1] == min(losses) else best
    return weight.detach(), best, losses


@pytest.mark.parametrize("kind", PLAIN)
def test_geopres_preset_paper_equals_a_plain_torch_training_loop(rows, kind):
    some = 2 * rows[:400] + 0.1  # lengths that matter to Eq. 1
    fitted = GeoPres(6, preset="paper", loss=kind, batch=60, steps=45).fit(some)
    config = fitted.training_log.config
    assert config == TrainingConfig(45, 60, 1e-2, 0.1, 0.1, heldout=10_000, check_every=20, patience=3)
    last, best, losses = train_papers_map(some, 6, config, PLAIN[kind])
    start = draw_random_weight(40, 6, 0)
    first = Batches(some, config, 0, torch.device("cpu")).sample(0)
    first = first if kind is None else torch.from_numpy(unit(first)).float()
    np.testing.assert_allclose(
        fitted.training_log.heldout_losses, np.array(losses) / float(PLAIN[kind](first, first @ start.T)), rtol=1e-4
    )
    assert not torch.equal(best, draw_random_weight(40, 6, 0))
    if kind is not None:  # its scale is set afterwards
        scale = fitted.weight.norm() / best.norm()
        assert abs(float(scale) - 1) > 1e-3
        best = best * scale
    np.testing.assert_allclose(fitted.weight, best, atol=1e-4)


def test_geopres_has_a_training_log_only_if_it_was_trained(rows):
    fitted = GeoPres(4, steps=7)
    assert fitted.training_log is None
    assert fitted.fit(rows).training_log.steps == 7
    assert fitted.training_log.config == TrainingConfig(7, 512, 5e-3)
    assert fitted.fit(Moments.from_vectors(unit(rows))).training_log is None
    assert GeoPres(4, steps=0).fit(rows).training_log is None
