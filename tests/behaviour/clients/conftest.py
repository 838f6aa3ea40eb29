import pytest

from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import DEFAULT_MODEL


@pytest.fixture(scope="module")
def reference():
    from sentence_transformers import SentenceTransformer  # seconds that the tests of other files need not wait

    return SentenceTransformer(locate_model(DEFAULT_MODEL), device="cpu")


@pytest.fixture(scope="module")
def plain(reference, sentences):
    return reference.encode(sentences)
