"""Forms of a chain that clients choose by dimensions take bounded memory, and give what folding each would give."""

import itertools

import numpy as np
import pytest

from lathe.service.chains.folded_forms import FoldedForms
from lathe.transforms import Chain, parse_steps
from lathe.transforms.errors import InputError

WIDTH = 256
NESTED = ["geopres:192,nested=true,steps=0", "r2,pca:192", "truncation:192", "pca:192,int8", "whitening:192,r2"]


@pytest.fixture(scope="module")
def vectors():
    """Draw vectors `(600, WIDTH)` that share a direction."""
    return (np.random.default_rng(0).normal(size=(600, WIDTH)) + 1).astype(np.float32)


@pytest.fixture(scope="module", params=NESTED)
def chain(request, vectors):
    return Chain(parse_steps(request.param)).fit(vectors)


def test_a_form_is_what_folding_to_its_dimensions_gives(chain, vectors):
    forms = FoldedForms(chain)
    sizes = [None, chain.output_dimensions, *([100, 1] if chain.nested else [])]
    for form in itertools.product(sizes, (True, False), ("document", "query")):
        expected = chain.fold(*form).floats(vectors[:20])
        for _ in range(2):
            np.testing.assert_allclose(forms.get(*form).floats(vectors[:20]), expected, atol=1e-6, err_msg=str(form))


def count_bytes(forms):
    """Return the bytes of all tensors that the kept forms hold, each storage once."""
    kept = [*forms.whole.values(), *(form for form, _ in forms.short.values())]
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for form in kept
        for tensor in form.buffers()
    }
    return sum(storages.values())


def test_all_dimensions_sides_and_norms_of_a_nested_chain_share_the_tensors_of_four_forms(vectors):
    chain = Chain(parse_steps("r2,geopres:192,nested=true,steps=0")).fit(vectors)
    forms = FoldedForms(chain)
    for dimensions in range(1, 193):
        for normalize in (True, False):
            for side in ("document", "query"):
                forms.get(dimensions, normalize, side)
    whole = [chain.fold(None, normalize, side) for normalize in (True, False) for side in ("document", "query")]
    assert count_bytes(forms) <= sum(tensor.nbytes for form in whole for tensor in form.buffers())
    assert len(forms.short) == 4 * 192
    with pytest.raises(InputError):
        forms.get(193, True, "document")
