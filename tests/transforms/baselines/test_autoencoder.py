import numpy as np
import pytest
import torch

from lathe.transforms import Autoencoder, InputError
from lathe.transforms.learned.descent import Batches


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(600, 20, seed=1)


@pytest.fixture(scope="module")
def heldout(embeddings):
    return embeddings(200, 20, seed=2)


@pytest.fixture(scope="module")
def fitted(rows):
    return Autoencoder(6, batch=100, steps=200).fit(rows)


def error(autoencoder, rows):
    """Return the mean squared reconstruction error."""
    return np.square(rows - autoencoder.inverse_transform(autoencoder.transform(rows))).sum(1).mean()


def train_with_torch_layers(autoencoder, rows):
    """Train torch layers with AdamW on the same batches and return the last weights and the loss of each step."""
    recipe, start = autoencoder.training_log.config, autoencoder._draw_initial_parameters(rows.shape[1])
    encoder, decoder = (torch.nn.Linear(*reversed(start[name].shape)) for name in ("weight", "decoder_weight"))
    layers = dict(zip(start, (encoder.weight, encoder.bias, decoder.weight, decoder.bias), strict=True))
    with torch.no_grad():
        for name, parameter in layers.items():
            parameter.copy_(start[name])
    optimizer = torch.optim.AdamW(layers.values(), lr=1.0, weight_decay=0.1)
    warm = int(0.1 * recipe.steps)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.01 * min((step + 1) / max(warm, 1), (recipe.steps - step) / (recipe.steps - warm))
    )
    batches = Batches(rows, recipe, autoencoder.seed, torch.device("cpu"))
    losses = []
    for step in range(recipe.steps):
        batch = batches.sample(step)
        optimizer.zero_grad()
        back = decoder(encoder(batch).relu())
        loss = (batch - (back.relu() if autoencoder.literal else back)).square().sum(1).mean()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    return {name: parameter.detach() for name, parameter in layers.items()}, losses


@pytest.mark.parametrize("literal", [False, True])
def test_autoencoder_training_equals_torch_linear_layers_trained_with_adamw(rows, literal):
    # The last held-out loss is the best here, so that what is kept is what was reached last.
    autoencoder = Autoencoder(6, literal=literal, steps=30, batch=100).fit(rows)
    assert int(np.argmin(autoencoder.training_log.heldout_losses)) == len(autoencoder.training_log.heldout_losses) - 1
    expected, losses = train_with_torch_layers(autoencoder, rows)
    assert autoencoder.training_log.loss == pytest.approx(losses[-1], rel=1e-4)
    for name, tensor in expected.items():
        np.testing.assert_allclose(getattr(autoencoder, name), tensor, atol=1e-4)


def test_autoencoder_training_lowers_the_loss_and_reconstruction_error_on_held_out_rows(fitted, rows, heldout):
    losses = fitted.training_log.heldout_losses
    assert min(losses) < 0.6 * losses[0]
    assert error(fitted, heldout) < 0.5 * error(Autoencoder(6, batch=100, steps=1).fit(rows), heldout)
    assert error(fitted, heldout) < 0.9 * np.square(heldout - rows.mean(0)).sum(1).mean()


def test_autoencoder_outputs_are_the_relu_of_its_affine_encoder(fitted, heldout):
    out = fitted.transform(heldout)
    expected = np.maximum(heldout @ fitted.weight.numpy().T + fitted.bias.numpy(), 0)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    assert out.shape == (200, 6)
    assert (out == 0).any() and (out > 0).any()


def test_autoencoder_inverse_is_its_affine_decoder_and_can_be_negative(fitted, heldout):
    codes = fitted.transform(heldout)
    back = fitted.inverse_transform(codes)
    expected = codes @ fitted.decoder_weight.numpy().T + fitted.decoder_bias.numpy()
    np.testing.assert_allclose(back, expected, atol=1e-5)
    assert fitted.inverse_kind == "approximate"
    assert back.min() < -0.01


def test_literal_autoencoder_applies_relu_to_its_decoder(rows, heldout):
    literal = Autoencoder(6, literal=True, batch=100).fit(rows)
    codes = literal.transform(heldout)
    expected = codes @ literal.decoder_weight.numpy().T + literal.decoder_bias.numpy()
    np.testing.assert_allclose(literal.inverse_transform(codes), np.maximum(expected, 0), atol=1e-5)
    assert expected.min() < 0


def test_autoencoder_refuses_rows_whose_squares_overflow_as_diverged(rows):
    with pytest.raises(InputError, match="autoencoder diverged at step 1"):
        Autoencoder(4).fit(rows * np.float32(1e30))
