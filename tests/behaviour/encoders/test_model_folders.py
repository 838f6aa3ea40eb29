"""Folders of models as sentence-transformers writes them: each gives its vectors, or is refused with a reason."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import CNN, LSTM, Pooling, StaticEmbedding, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    CLIPConfig,
    CLIPImageProcessor,
    CLIPModel,
    CLIPProcessor,
    PreTrainedTokenizerFast,
)

from lathe.training.encoder.encoder import UNLIMITED, Encoder
from lathe.training.encoder.model_checks import count_positions
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import EncoderError, TooLongError
from tests.behaviour.encoders.tiny_models import (
    AXES,
    HIDDEN,
    IDS,
    POSITIONS,
    SPECIAL,
    TinyModel,
    build_tokenizer,
)

TEXTS = [
    "one",
    "The Cat sat on the mat.",
    "A sentence that is somewhat longer than its neighbours, so that a batch of both needs padding.",
    "far too long, and more so with every word " * 30,
]
"""Texts of different lengths; most models here read but the beginning of the last."""

OFFSET = {"roberta": 2, "xlm-roberta": 2, "mpnet": 2}
"""Positions that no token of a text is at."""

UNBOUNDED = ("xlnet", "t5")
"""Backbones with relative positions only, whose tokenizers here name no limit."""


def expected_length(model: TinyModel) -> int:
    if model.fields == "shorter":
        return 24
    if model.backbone in UNBOUNDED:
        return POSITIONS + 100 if model.fields == "longer" else UNLIMITED
    rotary = model.backbone in ("modernbert", "qwen3", "gemma3_text", "deberta-v2")
    return POSITIONS + 100 if rotary and model.fields == "longer" else POSITIONS - OFFSET.get(model.backbone, 0)


def vectors_of_sentence_transformers(folder: Path, texts: list[str], max_length: int | None = None) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})
    if max_length is not None:
        model.max_seq_length = max_length
    return np.concatenate([model.encode([text], normalize_embeddings=True) for text in texts])


MODELS = [
    TinyModel(*(values[number % len(values)] for values in AXES.values())) for number in range(len(AXES["backbone"]))
]
"""One model of each backbone, in which each value of every other axis occurs."""


def assert_vectors_of_sentence_transformers(folder: Path, model: TinyModel) -> None:
    """Compare the vectors of texts, which are encoded together here, and alone there, where nothing is padded."""
    model.write(folder)
    encoder = Encoder(EncoderSpec("tiny", str(folder)), "cpu")
    assert encoder.max_length == expected_length(model)
    assert encoder.dimensions == (12 if model.fields == "truncate_dim" else encoder.encode(["x"]).vectors.shape[1])
    found = encoder.encode(TEXTS)
    expected = vectors_of_sentence_transformers(
        folder, TEXTS, None if encoder.max_length == UNLIMITED else encoder.max_length
    )
    # Some buffers, such as the factor of Gemma's embeddings, are as exact as the files.
    tolerance = 1e-4 if model.dtype == "float32" else 5e-4
    np.testing.assert_allclose(found.vectors, expected, rtol=0, atol=tolerance, err_msg=str(model))
    assert found.tokens.max() <= encoder.max_length


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_model_gives_the_vectors_of_sentence_transformers_in_any_batch(tmp_path, model):
    assert_vectors_of_sentence_transformers(tmp_path / "model", model)


@pytest.mark.parametrize("model", MODELS[::3], ids=str)
def test_a_model_runs_in_half_precision_whatever_dtype_its_files_have(tmp_path, model):
    spec = EncoderSpec("tiny", str(model.write(tmp_path / "model")))
    whole = Encoder(replace(spec, dtype="float32"), "cpu")
    for dtype in ("bfloat16", "float16"):
        half = Encoder(replace(spec, dtype=dtype), "cpu")
        assert half.fingerprint == whole.fingerprint
        cosines = (half.encode(TEXTS[:3]).vectors * whole.encode(TEXTS[:3]).vectors).sum(axis=1)
        assert cosines.min() > 0.95


@pytest.mark.parametrize("backbone", ["modernbert", "qwen3"])
def test_rotary_positions_are_exact_in_bfloat16(tmp_path, backbone):
    """`Module.to` would round their frequencies."""
    spec = EncoderSpec("tiny", str(TinyModel(backbone, pooling="lasttoken", fields="longer").write(tmp_path / "model")))
    half, whole = (Encoder(replace(spec, dtype=name), "cpu") for name in ("bfloat16", "float32"))
    assert (half.encode(TEXTS).vectors * whole.encode(TEXTS).vectors).sum(axis=1).min() > 0.998
    names = [name for name, buffer in half.transformer.named_buffers() if buffer.dtype == torch.float32]
    assert names and all(name.endswith("inv_freq") for name in names)


@pytest.mark.parametrize("backbone", ["roberta", "bert"])
def test_max_length_may_be_as_many_tokens_as_the_model_has_positions_for(tmp_path, backbone):
    spec = EncoderSpec("tiny", str(TinyModel(backbone).write(tmp_path / "model")))
    limit = POSITIONS - OFFSET.get(backbone, 0)
    longest = Encoder(replace(spec, max_length=limit), "cpu")
    assert longest.encode([TEXTS[3]]).tokens.tolist() == [limit]
    with pytest.raises(TooLongError, match=f"more than the {limit} that tiny reads"):
        longest.encode([TEXTS[3]], long_text="error")
    with pytest.raises(EncoderError, match=f"tiny reads 3 to {limit} tokens, not max_length {limit + 1}"):
        Encoder(replace(spec, max_length=limit + 1), "cpu")


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("bart", {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}),
        ("gpt2", {"n_embd": 24, "n_layer": 1}),
        ("roberta", {"hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 8}),
        ("nystromformer", {"hidden_size": 24, "num_hidden_layers": 1, "intermediate_size": 8}),
    ],
)
def test_count_positions_is_the_longest_text_that_a_model_of_transformers_reads(kind, settings):
    heads = {"num_attention_heads": 4, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "n_head": 4}
    config = AutoConfig.for_model(
        kind, vocab_size=32, max_position_embeddings=30, pad_token_id=1, bos_token_id=0, eos_token_id=2,
        **settings, **heads,
    )  # fmt: skip
    model = AutoModel.from_config(config).eval()
    count = count_positions(model)
    assert count == (28 if kind == "roberta" else 30)
    ids = torch.full((1, count), 5)
    with torch.inference_mode():
        assert model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state.shape[1] == count


def test_the_fingerprint_depends_on_the_activation_and_on_lower_case(tmp_path):
    fingerprints = set()
    for number, activation in enumerate(("Tanh", "ReLU")):
        folder = TinyModel(modules="dense").write(tmp_path / str(number))
        settings = json.loads((folder / "2_Dense" / "config.json").read_text())
        settings["activation_function"] = f"torch.nn.modules.activation.{activation}"
        (folder / "2_Dense" / "config.json").write_text(json.dumps(settings))
        fingerprints.add(Encoder(EncoderSpec("tiny", str(folder)), "cpu").fingerprint)
    lower = TinyModel(modules="dense", fields="lower case").write(tmp_path / "lower")
    fingerprints.add(Encoder(EncoderSpec("tiny", str(lower)), "cpu").fingerprint)
    assert len(fingerprints) == 3


def test_a_model_that_reads_padding_gets_batches_of_texts_of_equal_lengths(tmp_path):
    """A convolution behind the transformer reads beyond the end of a text."""
    transformer = Transformer(str(TinyModel().write(tmp_path / "bert")))
    modules = [transformer, CNN(HIDDEN, 16), Pooling(48)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "cnn"), create_model_card=False)
    texts = [*TEXTS, "two", "ten"]
    encoder = Encoder(EncoderSpec("cnn", str(tmp_path / "cnn")), "cpu")
    expected = vectors_of_sentence_transformers(tmp_path / "cnn", texts)
    np.testing.assert_allclose(encoder.encode(texts).vectors, expected, rtol=0, atol=1e-5)
    assert not encoder.unpadded
    assert all(len(set(batch.tokens)) == 1 for _, batch in encoder.batches(texts, None))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_static_model_with_a_dense_module_runs_in_each_dtype(tmp_path, dtype):
    torch.manual_seed(0)
    modules = [StaticEmbedding(build_tokenizer(), embedding_dim=16), Dense(16, 8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "static"), create_model_card=False)
    found = Encoder(EncoderSpec("static", str(tmp_path / "static"), dtype=dtype), "cpu").encode(TEXTS).vectors
    expected = vectors_of_sentence_transformers(tmp_path / "static", TEXTS)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 if dtype == "float32" else 0.01)


def test_truncate_dim_is_a_module_with_vectors_of_its_own_space(tmp_path):
    folder = TinyModel(fields="truncate_dim").write(tmp_path / "model")
    cut = Encoder(EncoderSpec("tiny", str(folder)), "cpu")
    (folder / "config_sentence_transformers.json").write_text("{}")
    whole = Encoder(EncoderSpec("tiny", str(folder)), "cpu")
    assert (cut.dimensions, whole.dimensions) == (12, HIDDEN) and cut.fingerprint != whole.fingerprint
    raw = [encoder.encode(TEXTS, normalize=False).vectors for encoder in (cut, whole)]
    np.testing.assert_allclose(raw[0], raw[1][:, :12], rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(cut.encode(TEXTS).vectors, axis=1), 1, rtol=0, atol=1e-6)


def test_a_clip_model_gives_the_vectors_of_its_texts(tmp_path):
    pytest.importorskip("PIL")
    sides = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    text = sides | {"max_position_embeddings": 40, "vocab_size": 400, **IDS}
    vision = sides | {"image_size": 16, "patch_size": 8}
    torch.manual_seed(0)
    folder = tmp_path / "clip" / "0_CLIPModel"
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=12)).save_pretrained(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), model_input_names=["input_ids", "attention_mask"], **SPECIAL
    )
    CLIPProcessor(CLIPImageProcessor(), tokenizer).save_pretrained(folder)
    listed = [{"idx": 0, "name": "0", "path": folder.name, "type": "sentence_transformers.models.CLIPModel"}]
    (folder.parent / "modules.json").write_text(json.dumps(listed))
    encoder = Encoder(EncoderSpec("clip", str(folder.parent)), "cpu")
    assert encoder.max_length == 40
    expected = vectors_of_sentence_transformers(folder.parent, TEXTS, 40)
    np.testing.assert_allclose(encoder.encode(TEXTS).vectors, expected, atol=1e-5)


def test_a_model_that_begins_with_another_module_is_refused_by_the_name_of_the_module(tmp_path):
    words = WhitespaceTokenizer(vocab=["PADDING", "cat", "mat"])
    modules = [WordEmbeddings(words, np.random.default_rng(0).random((3, 8))), Pooling(8)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "glove"), create_model_card=False)
    with pytest.raises(EncoderError, match="glove begins with the module WordEmbeddings, which is not supported"):
        Encoder(EncoderSpec("glove", str(tmp_path / "glove")), "cpu")


def test_a_model_that_fails_on_any_text_is_refused_with_what_it_lacks(tmp_path):
    """An LSTM behind a transformer gets no lengths of sentences, in sentence-transformers too."""
    transformer = Transformer(str(TinyModel().write(tmp_path / "bert")))
    modules = [transformer, LSTM(HIDDEN, 16), Pooling(32)]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "lstm"), create_model_card=False)
    with pytest.raises(EncoderError, match="the encoder lstm .* cannot be loaded: KeyError: 'sentence_lengths'"):
        Encoder(EncoderSpec("lstm", str(tmp_path / "lstm")), "cpu")


def test_modules_that_do_not_fit_together_are_refused(tmp_path):
    folder = TinyModel(modules="dense").write(tmp_path / "model")
    shutil.copytree(TinyModel(pooling="cls+mean", modules="dense").write(tmp_path / "wide") / "2_Dense", folder / "3")
    listed = json.loads((folder / "modules.json").read_text())
    (folder / "modules.json").write_text(json.dumps([*listed, listed[-1] | {"idx": 3, "name": "3", "path": "3"}]))
    with pytest.raises(EncoderError, match="the encoder tiny .* cannot be loaded: mat1 and mat2"):
        Encoder(EncoderSpec("tiny", str(folder)), "cpu")


def change_settings(folder: Path, file: str, **settings) -> Path:
    known = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps(known | settings))
    return folder


def lack_weights(folder: Path, lacking: str) -> Path:
    """Remove the weights with a word in their names from a folder's file and return the folder."""
    weights = load_file(folder / "model.safetensors")
    kept = {name: weight for name, weight in weights.items() if lacking not in name}
    assert len(kept) < len(weights)
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(("backbone", "lacking"), [("bert", "layer.1.attention"), ("qwen3", "weight")])
def test_a_model_whose_files_lack_weights_is_refused_as_others_would_be_random(tmp_path, backbone, lacking):
    folder = lack_weights(TinyModel(backbone).write(tmp_path / "model"), lacking)
    with pytest.raises(EncoderError, match=r"the files of tiny lack \d+ of the \d+ weights of the model, such as"):
        Encoder(EncoderSpec("tiny", str(folder)), "cpu")


def test_a_pooler_that_no_pooling_reads_may_be_missing(tmp_path):
    folder = lack_weights(TinyModel().write(tmp_path / "model"), "pooler")
    whole = TinyModel().write(tmp_path / "whole")
    found, expected = (Encoder(EncoderSpec("tiny", str(one)), "cpu").encode(TEXTS).vectors for one in (folder, whole))
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_an_adapter_is_loaded_onto_its_base_with_what_it_was_trained_to(tmp_path):
    from peft import LoraConfig

    model = SentenceTransformer(str(TinyModel().write(tmp_path / "base")), device="cpu")
    model.add_adapter(LoraConfig(r=4, target_modules=["query", "value"]))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.5)
    model.save(str(tmp_path / "adapter"), create_model_card=False)
    expected = np.concatenate([model.encode([text], normalize_embeddings=True) for text in TEXTS])
    adapted = Encoder(EncoderSpec("adapted", str(tmp_path / "adapter")), "cpu")
    base = Encoder(EncoderSpec("base", str(tmp_path / "base")), "cpu")
    np.testing.assert_allclose(adapted.encode(TEXTS).vectors, expected, atol=1e-5)
    assert adapted.fingerprint != base.fingerprint


@pytest.mark.parametrize("static", [False, True])
def test_a_token_that_the_model_has_no_vector_for_is_an_error_of_its_text_alone(tmp_path, static):
    """Tokenizers have special tokens that were added without a row of the model's table."""
    if static:
        modules = [StaticEmbedding(build_tokenizer(), embedding_dim=8)]
        SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "model"), create_model_card=False)
        folder = tmp_path / "model"
    else:
        folder = TinyModel().write(tmp_path / "model")
    tokens = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    new = tokens[0] | {"id": 400, "content": "[NEW]"}
    assert Encoder(EncoderSpec("tiny", str(folder)), "cpu").vocabulary is None
    change_settings(folder, "tokenizer.json", added_tokens=[*tokens, new])
    encoder = Encoder(EncoderSpec("tiny", str(folder)), "cpu")
    assert encoder.encode([*TEXTS, ""]).vectors.shape == (5, encoder.dimensions)
    with pytest.raises(EncoderError, match=r"a text has the token '\[NEW\]', for which tiny has no vector"):
        encoder.encode(["one", "see [NEW] here"])


def test_a_static_model_whose_table_is_too_short_for_ordinary_texts_is_refused(tmp_path):
    modules = [StaticEmbedding(build_tokenizer(), embedding_weights=torch.randn(50, 8))]
    SentenceTransformer(modules=modules, device="cpu").save(str(tmp_path / "model"), create_model_card=False)
    with pytest.raises(EncoderError, match="a text has the token .*, for which tiny has no vector"):
        Encoder(EncoderSpec("tiny", str(tmp_path / "model")), "cpu")


def test_a_folder_that_says_nothing_of_pooling_is_served_with_a_warning(tmp_path):
    folder = TinyModel().write(tmp_path / "model")
    assert Encoder(EncoderSpec("tiny", str(folder)), "cpu").warning is None
    (folder / "modules.json").unlink()
    warning = Encoder(EncoderSpec("tiny", str(folder)), "cpu").warning
    assert "tiny has no modules.json" in warning and "mean pooling is used; set pooling of this encoder" in warning
    assert Encoder(EncoderSpec("tiny", str(folder), pooling="cls"), "cpu").warning is None


def test_a_model2vec_folder_that_does_not_say_how_it_is_read_is_refused(tmp_path):
    change_settings(tmp_path, "config.json", model_type="model2vec", architectures=["StaticModel"])
    build_tokenizer().save(str(tmp_path / "tokenizer.json"))
    save_file({"embeddings": torch.randn(400, 8)}, tmp_path / "model.safetensors")
    with pytest.raises(EncoderError, match="tiny is a model2vec folder without modules.json"):
        Encoder(EncoderSpec("tiny", str(tmp_path)), "cpu")
    listed = [{"idx": 0, "name": "0", "path": ".", "type": "sentence_transformers.models.StaticEmbedding"}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    assert Encoder(EncoderSpec("tiny", str(tmp_path)), "cpu").encode(TEXTS).vectors.shape == (4, 8)


def test_weights_that_git_lfs_has_not_fetched_are_named(tmp_path):
    folder = TinyModel().write(tmp_path / "model")
    (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(EncoderError, match="model.safetensors of tiny is a pointer of Git LFS: fetch it with git lfs"):
        Encoder(EncoderSpec("tiny", str(folder)), "cpu")


def test_a_reranker_or_classifier_of_transformers_is_refused_by_its_architecture(tmp_path, tiny_model):
    shutil.copytree(tiny_model.parent / "bert", tmp_path / "bert")
    change_settings(tmp_path / "bert", "config.json", architectures=["BertForSequenceClassification"])
    with pytest.raises(EncoderError, match="tiny is a BertForSequenceClassification, a reranker or classifier, which"):
        Encoder(EncoderSpec("tiny", str(tmp_path / "bert")), "cpu")


@pytest.mark.parametrize(
    ("file", "settings", "message"),
    [
        ("sentence_bert_config.json", {"max_seq_length": 0}, "tiny has max_seq_length 0 in its settings; allowed are"),
        ("sentence_bert_config.json", {"max_seq_length": "128"}, "tiny has max_seq_length '128' in its settings"),
        ("config_sentence_transformers.json", {"prompts": {"query": ["a"]}}, "tiny has a prompt query of"),
        ("config_sentence_transformers.json", {"truncate_dim": 0}, "tiny has truncate_dim 0 in its settings; allowed"),
        ("config_sentence_transformers.json", {"truncate_dim": "64"}, "tiny has truncate_dim '64' in its settings"),
        ("config_sentence_transformers.json", {"model_type": "ColBERT"}, "tiny is a ColBERT, which is not supported"),
        ("config_sentence_transformers.json", {"default_prompt_name": "none"}, "'none' not found in the configured"),
        ("config.json", {"model_type": "novel"}, "model type `novel` but Transformers does not recognize"),
    ],
)
def test_settings_of_a_folder_that_make_no_sense_are_refused_when_it_is_loaded(tmp_path, file, settings, message):
    folder = change_settings(TinyModel().write(tmp_path / "model"), file, **settings)
    with pytest.raises(EncoderError, match=message):
        Encoder(EncoderSpec("tiny", str(folder)), "cpu")


def test_a_tokenizer_that_pads_and_truncates_by_itself_changes_nothing(tmp_path):
    plain, padded = (TinyModel().write(tmp_path / name) for name in ("plain", "padded"))
    change_settings(
        padded,
        "tokenizer.json",
        padding={
            "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None,
            "pad_id": 1, "pad_type_id": 0, "pad_token": "<pad>",
        },
        truncation={"direction": "Right", "max_length": 10, "strategy": "LongestFirst", "stride": 0},
    )  # fmt: skip
    encoders = [Encoder(EncoderSpec("tiny", str(folder)), "cpu") for folder in (plain, padded)]
    np.testing.assert_array_equal(*(encoder.encode(TEXTS).vectors for encoder in encoders))
    assert encoders[1].encode(TEXTS).tokens.tolist() == encoders[0].encode(TEXTS).tokens.tolist()
