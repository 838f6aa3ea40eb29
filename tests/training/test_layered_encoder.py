from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from transformers import AutoTokenizer, ModernBertConfig, ModernBertModel

from lathe.training.encoder import layers
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.layers import FINAL_NORMS, LayeredEncoder, parse_variants
from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL, EncoderSpec
from lathe.training.errors import EncoderError
from lathe.training.evaluation.encoders import BAG_DIMENSIONS, BAG_OF_WORDS, RequestedEncoder, plan_groups

LAYERS = 6
TEXTS = [
    "The cat sat on the mat.",
    "",
    "naïve café, Straße, 東京, 😀",
    "A sentence that is somewhat longer than its neighbours, so that the batch needs padding. " * 4,
    "far too long " * 400,
    *(f"Compact vectors number {number} are cheap to keep and quick to search." for number in range(20)),
]


@pytest.fixture(scope="module")
def layered():
    """Return the default encoder with all layers as variants."""
    return LayeredEncoder(Encoder(DEFAULT_ENCODER), parse_variants(DEFAULT_ENCODER, "layers", LAYERS))


@pytest.fixture(scope="module")
def static(tmp_path_factory):
    """Save a static encoder (it looks up a vector for each token) with random vectors; return its folder."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "static"
    tokenizer = Tokenizer.from_file(str(Path(locate_model(DEFAULT_MODEL)) / "tokenizer.json"))
    SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=16)], device="cpu").save_pretrained(
        str(folder), create_model_card=False
    )
    return folder


@pytest.fixture(scope="module")
def normed_at_the_end(tmp_path_factory):
    """Return the spec of a small model with a norm after its last layer, as a model cut at an inner layer has too."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("models") / "normed"
    tokenizer = AutoTokenizer.from_pretrained(locate_model(DEFAULT_MODEL))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    special = {f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")}
    model = ModernBertModel(ModernBertConfig(vocab_size=len(tokenizer), **sizes, **special))
    torch.nn.init.normal_(model.final_norm.weight)
    model.save_pretrained(folder)
    read = Transformer(str(folder), max_seq_length=64)
    whole = SentenceTransformer(modules=[read, Pooling(32, pooling_mode="mean")], device="cpu")
    whole.save_pretrained(str(folder.parent / "whole"), create_model_card=False)
    return EncoderSpec("normed", str(folder.parent / "whole"))


def no_report(_):
    pass


def test_layered_encoder_gives_each_variant_the_vectors_of_the_cut_model(layered):
    assert layered.alone == []
    shared = layered.encode(TEXTS)
    assert len(shared) == 2 * LAYERS
    for variant, vectors in zip(layered.variants, shared, strict=True):
        np.testing.assert_allclose(
            vectors, Encoder(variant.spec).encode(TEXTS).vectors, rtol=0, atol=1e-5, err_msg=variant.name
        )
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=0, atol=1e-6)


def test_variants_are_named_by_layer_and_pooling_and_have_distinct_fingerprints(layered):
    names = [f"all-MiniLM-L6-v2:layer{layer}-{way}" for layer in range(1, LAYERS + 1) for way in ("mean", "cls")]
    assert [variant.name for variant in layered.variants] == names
    assert [(one.spec.layer, one.spec.pooling) for one in layered.variants[4:6]] == [(3, "mean"), (3, "cls")]
    assert len({variant.fingerprint for variant in layered.variants}) == 2 * LAYERS


def test_the_last_layer_with_the_models_pooling_equals_the_model(layered, encoder):
    last = layered.variants[-2]
    assert (last.name, last.fingerprint) == ("all-MiniLM-L6-v2:layer6-mean", encoder.fingerprint)
    np.testing.assert_allclose(layered.encode(TEXTS)[-2], encoder.encode(TEXTS).vectors, rtol=0, atol=1e-5)


def test_encode_reports_progress_per_batch_and_accepts_an_empty_list(layered):
    told = []
    layered.encode(TEXTS, on_batch=told.append)
    assert told == sorted(set(told)) and told[-1] == len(TEXTS) and len(told) > 1
    assert [vectors.shape for vectors in layered.encode([])] == [(0, 384)] * 2 * LAYERS


@pytest.mark.parametrize(
    ("norms", "alone"), [(FINAL_NORMS, []), ((), [0, 1, 2, 3])], ids=["a norm that is known", "an unknown norm"]
)
def test_each_layer_of_a_model_with_a_final_norm_is_that_of_the_cut_model(normed_at_the_end, monkeypatch, norms, alone):
    """The last layer's states are taken after the norm; a layer that differs in the shared pass runs as a cut model."""
    monkeypatch.setattr(layers, "FINAL_NORMS", norms)
    layered = LayeredEncoder(Encoder(normed_at_the_end), parse_variants(normed_at_the_end, "layers", 3))
    assert layered.alone == alone
    for variant, vectors in zip(layered.variants, layered.encode(TEXTS), strict=True):
        np.testing.assert_allclose(
            vectors, Encoder(variant.spec).encode(TEXTS).vectors, rtol=0, atol=1e-5, err_msg=variant.name
        )


def test_parse_variants_takes_one_layer_with_any_pooling():
    (variant,) = parse_variants(DEFAULT_ENCODER, "layer4-max", LAYERS)
    assert variant == replace(DEFAULT_ENCODER, name="all-MiniLM-L6-v2:layer4-max", layer=4, pooling="max")


@pytest.mark.parametrize("written", ["layer", "layer3", "3-cls", "layer3-median", "layer-cls", "layerx-cls", "Layers"])
def test_parse_variants_refuses_an_unknown_variant_and_lists_the_allowed_ones(written):
    with pytest.raises(EncoderError, match=f"MiniLM-L6-v2:{written} is no variant: .*:layers, .*1 to 6; mean, cls"):
        parse_variants(DEFAULT_ENCODER, written, LAYERS)


def test_layered_encoder_refuses_a_layer_that_the_model_lacks():
    whole = Encoder(DEFAULT_ENCODER)
    for number in (0, 7):
        with pytest.raises(EncoderError, match=f"has layers 1 to 6, not {number}"):
            LayeredEncoder(whole, parse_variants(DEFAULT_ENCODER, f"layer{number}-cls", LAYERS))


def test_running_batches_and_pooling_them_gives_the_vectors_of_encode(encoder):
    """Every text is in exactly one batch."""
    batches = list(encoder.batches(TEXTS, None))
    assert len(batches) > 1
    assert sorted(row for rows, _ in batches for row in rows) == list(range(len(TEXTS)))
    found = np.empty((len(TEXTS), encoder.dimensions), np.float32)
    with torch.inference_mode():
        for rows, batch in batches:
            features = encoder.run_transformer(batch)
            found[rows] = encoder.pool(features, list(encoder.model)[1:], len(rows), normalize=True).numpy()
    np.testing.assert_array_equal(found, encoder.encode(TEXTS).vectors)


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


def test_a_static_encoder_in_bfloat16_gives_unit_vectors_of_a_text_of_any_length(static):
    encoder = Encoder(EncoderSpec("static", str(static), dtype="bfloat16"), "cpu")
    vectors = encoder.encode(["word " * 2000], long_text="error").vectors
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=0, atol=1e-6)


def test_a_static_encoder_refuses_max_length_and_layers(static):
    with pytest.raises(EncoderError, match="reads texts of any length: leave max_length out"):
        Encoder(EncoderSpec("static", str(static), max_length=64), "cpu")
    (opener,) = plan_groups([RequestedEncoder(EncoderSpec("static", str(static)), "layers")], "cpu")
    with pytest.raises(EncoderError, match="static is a static model: it has no layers"):
        opener()


def test_plan_groups_puts_variants_of_a_model_into_one_group_and_others_alone(static):
    other = EncoderSpec("other", str(static))
    wanted = [
        RequestedEncoder(DEFAULT_ENCODER, "layer1-cls"),
        RequestedEncoder(None),
        RequestedEncoder(DEFAULT_ENCODER, "layer2-mean"),
        RequestedEncoder(other),
        RequestedEncoder(DEFAULT_ENCODER, "layer1-cls"),
    ]
    groups = [opener() for opener in plan_groups(wanted, "cpu")]
    variants = ["all-MiniLM-L6-v2:layer1-cls", "all-MiniLM-L6-v2:layer2-mean"]
    assert [[one.name for one in group.members] for group in groups] == [variants, [BAG_OF_WORDS], ["other"]]
    families = [f"all-MiniLM-L6-v2, {way} pooling" for way in ("cls", "mean")]
    assert [one.family for one in groups[0].members] == families
    for group in groups:
        for one, vectors in zip(group.members, group.encode(TEXTS, None, no_report), strict=True):
            assert vectors.shape == (len(TEXTS), one.dimensions)


def test_the_family_is_as_given_or_the_hub_organization_or_the_encoders_name(static):
    folder = EncoderSpec("mine", str(static))
    wanted = [
        RequestedEncoder(DEFAULT_ENCODER),
        RequestedEncoder(folder),
        RequestedEncoder(folder, family="kin", published_mean_norm=0.5),
    ]
    members = [opener().members[0] for opener in plan_groups(wanted, "cpu")]
    assert [one.family for one in members] == ["sentence-transformers", "mine", "kin"]
    assert [one.published_mean_norm for one in members] == [None, None, 0.5]


def test_bag_of_words_vectors_have_norm_1_ignore_word_order_and_case_and_are_0_without_words():
    (opener,) = plan_groups([RequestedEncoder(None)], None)
    told = []
    texts = ["a cat and a dog", "", "a CAT and a dog!", "rain tonight", "a dog and a cat"]
    (vectors,) = opener().encode(texts, None, told.append)
    assert vectors.shape == (5, BAG_DIMENSIONS) and vectors.dtype == np.float32 and told == [5]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1, 1, 1], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors[[2, 4]], vectors[[0, 0]])
    assert not np.allclose(vectors[3], vectors[0])
    assert opener().encode([], None, no_report)[0].shape == (0, BAG_DIMENSIONS)
