"""A chain appended to a real `SentenceTransformer` in memory."""

import numpy as np
import pytest

from lathe.training.encoder.loading import load_model
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.transforms import Chain, StepError, parse_steps

TEXTS = [f"The {word} of {number} turns." for number in range(12) for word in ("lathe", "mill", "wheel", "tide")]
SIDES = '{"query": [{"kind": "pca", "dimensions": 8}], "document": [{"kind": "truncation", "dimensions": 8}]}'


def test_the_model_gives_the_vectors_of_the_chain(tmp_path):
    model = load_model(DEFAULT_ENCODER, "cpu")
    plain = model.encode(TEXTS)
    chain = Chain(parse_steps(SIDES)).fit(plain)

    model.append(chain.as_module())
    documents, queries = model.encode_document(TEXTS), model.encode_query(TEXTS)
    with pytest.raises(StepError, match="lathe export"):
        model.save_pretrained(str(tmp_path))
    np.testing.assert_allclose(documents, chain.floats(plain), atol=1e-5)
    np.testing.assert_allclose(queries, chain.transform_queries(plain), atol=1e-5)
    assert documents.shape[1] == model.get_embedding_dimension() == 8
