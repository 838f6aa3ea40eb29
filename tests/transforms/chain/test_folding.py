"""A chain as the last module of a SentenceTransformer in memory."""

import numpy as np
import pytest
import torch

from lathe.transforms import R2, Chain, Int8, NotFittedError, StepError, parse_steps


@pytest.fixture(scope="module")
def rows():
    return (np.random.default_rng(0).normal(size=(300, 16)) + 1).astype(np.float32)


def embed(chain, rows, dtype=torch.float32, **options):
    """Return the embeddings that a model of the rows and the chain gives."""
    module = chain.as_module()
    return module({"sentence_embedding": torch.tensor(rows).to(dtype)}, **options)["sentence_embedding"].numpy()


@pytest.mark.parametrize("steps", ["r2,pca:8", "r2,pca:8,int8", "r2,pca:8,binary", "r2,codes:8"])
def test_embeddings_equal_the_floats_of_the_chain(rows, steps):
    chain = Chain(parse_steps(steps)).fit(rows)

    np.testing.assert_allclose(embed(chain, rows), chain.floats(rows), atol=1e-6)
    assert chain.as_module().get_embedding_dimension() == chain.output_dimensions


def test_queries_are_mapped_as_queries(rows):
    chain = Chain(
        parse_steps(
            '{"query": [{"kind": "pca", "dimensions": 8}], "document": [{"kind": "truncation", "dimensions": 8}]}'
        )
    ).fit(rows)

    np.testing.assert_allclose(embed(chain, rows, task="query"), chain.transform_queries(rows), atol=1e-6)
    np.testing.assert_allclose(embed(chain, rows, task="document"), chain.transform(rows), atol=1e-6)
    assert not np.allclose(chain.transform(rows), chain.transform_queries(rows))


def test_embeddings_in_bfloat16_are_mapped_in_the_dtype_of_the_chain(rows):
    chain = Chain([R2()]).fit(rows)

    np.testing.assert_allclose(embed(chain, rows, torch.bfloat16), chain.transform(rows), atol=2e-2)


def test_a_chain_that_is_not_fitted_has_no_dimensions_and_saving_says_what_to_run_instead(tmp_path):
    module = Chain([R2(), Int8()]).as_module()

    with pytest.raises(NotFittedError, match="known once it is fitted"):
        module.get_embedding_dimension()
    with pytest.raises(StepError, match="lathe export NAME"):
        module.save(str(tmp_path))
