import pytest

from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import DEFAULT_MODEL


@pytest.fixture(scope="module")
def reference():
    """Load the served model in sentence-transformers."""
    from sentence_transformers import SentenceTransformer  # seconds that the tests of other files need not wait

    return SentenceTransformer(locate_model(DEFAULT_MODEL), device="cpu")


@pytest.fixture(scope="module")
def plain(reference, sentences):
    """Encode the sentences with sentence-transformers."""
    return reference.encode(sentences)
