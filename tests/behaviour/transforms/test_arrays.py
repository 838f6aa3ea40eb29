import numpy as np
import pytest
import torch

from lathe.transforms import R2, Chain, GeoPres, InputError


@pytest.fixture(scope="module")
def rows(embeddings):
    return embeddings(120, 12)


@pytest.fixture(scope="module")
def chain(rows):
    return Chain([R2(), GeoPres(6, steps=2)]).fit(rows)


def test_a_chain_can_be_fitted_on_a_tensor(rows, chain):
    fitted = Chain([R2(), GeoPres(6, steps=2)]).fit(torch.from_numpy(rows))
    np.testing.assert_allclose(fitted.transform(rows), chain.transform(rows), atol=1e-5)


def test_chain_transforms_nested_lists_of_numbers(rows, chain):
    np.testing.assert_allclose(chain.transform(rows[:3].tolist()), chain.transform(rows[:3]), atol=1e-6)


@pytest.mark.parametrize("bad", [[["a", "b"]], np.ones((2, 12)) * 1j, None])
def test_chain_transform_refuses_values_that_are_not_real_numbers(chain, bad):
    with pytest.raises(InputError, match="numbers"):
        chain.transform(bad)
