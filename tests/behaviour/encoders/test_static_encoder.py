import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL, EncoderSpec
from lathe.training.errors import EncoderError
from lathe.training.evaluation.encoders import RequestedEncoder

TEXTS = [
    "The cat sat on the mat.",
    "",
    "naïve café, Straße, 東京, 😀",
    "A sentence that is somewhat longer than its neighbours, so that the batch needs padding. " * 4,
    "far too long " * 400,
    *(f"Compact vectors number {number} are cheap to keep and quick to search." for number in range(20)),
]


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    """Save a static encoder (it looks up a vector for each token) with random vectors and return its folder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "static"
    tokenizer = Tokenizer.from_file(str(Path(locate_model(DEFAULT_MODEL)) / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


def test_a_static_encoder_returns_the_normalized_mean_of_token_vectors_in_any_batch(static):
    encoder = Encoder(EncoderSpec("static", str(static)), "cpu")
    encoded = encoder.encode(TEXTS)
    tokenizer, table = encoder.model.tokenizer, encoder.transformer.embedding.weight.detach().numpy()
    for text, tokens, vector in zip(TEXTS, encoded.tokens, encoded.vectors, strict=True):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        mean = table[ids].mean(axis=0) if ids else np.zeros(16)
        np.testing.assert_allclose(vector, mean / max(np.linalg.norm(mean), 1e-12), rtol=0, atol=1e-5)
        np.testing.assert_array_equal(vector, encoder.encode([text]).vectors[0])
        assert tokens == len(ids)
    np.testing.assert_array_equal(encoder.encode(TEXTS[::-1]).vectors, encoded.vectors[::-1])
    assert encoder.encode([]).vectors.shape == (0, 16)


def test_a_static_encoder_whose_tokens_share_weighted_vectors_returns_their_weighted_mean(static, tmp_path):
    folder = shutil.copytree(static, tmp_path / "shared")
    tokenizer = Tokenizer.from_file(str(next(folder.rglob("tokenizer.json"))))
    count = tokenizer.get_vocab_size()
    torch.manual_seed(0)
    table, mapping, weights = torch.randn(2000, 16), torch.randint(0, 2000, (count,)), torch.rand(count)
    tensors = {"embeddings": table, "mapping": mapping, "weights": weights}  # as model2vec quantizes a vocabulary
    save_file(tensors, next(folder.rglob("model.safetensors")))
    ids = tokenizer.encode(TEXTS[0], add_special_tokens=False).ids
    mean = (table[mapping[ids]] * weights[ids][:, None]).mean(dim=0)
    found = Encoder(EncoderSpec("shared", str(folder)), "cpu").encode(TEXTS[:1]).vectors[0]
    np.testing.assert_allclose(found, mean / mean.norm(), rtol=0, atol=1e-5)


def test_a_static_encoder_refuses_max_length(static):
    with pytest.raises(EncoderError, match="reads texts of any length: leave max_length"):
        Encoder(EncoderSpec("static", str(static), max_length=64), "cpu")


def test_the_family_is_as_given_or_the_hub_organization_or_the_encoders_name(static):
    folder = EncoderSpec("mine", str(static))
    wanted = [
        RequestedEncoder(DEFAULT_ENCODER),
        RequestedEncoder(folder),
        RequestedEncoder(folder, family="kin", published_mean_norm=0.5),
    ]
    members = [one.open("cpu").member for one in wanted]
    assert [one.family for one in members] == ["sentence-transformers", "mine", "kin"]
    assert [one.published_mean_norm for one in members] == [None, None, 0.5]
