"""Forms of a chain that clients choose by dimensions take bounded memory, and give what folding each would give."""

import itertools

import numpy as np
import pytest

from lathe.service.chains.folded_forms import FoldedForms
from lathe.transforms import Chain, parse_steps

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
