import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import ByteLevelBPETokenizer, CharBPETokenizer, Tokenizer, models, pre_tokenizers

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import locate_model
from lathe.training.encoder.model_checks import require_words
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL, EncoderSpec
from lathe.training.errors import EncoderError, NotFiniteError, TextError, TooLongError

TEXTS = [
    "The cat sat on the mat.",
    "",
    "Compact vectors are cheap to keep and quick to search.",
    "naïve café, Straße, 東京, 😀",
    "  leading and trailing space\n",
    "one",
    "A sentence that is somewhat longer than its neighbours, so that the batch needs padding. " * 4,
    "far too long " * 400,
    "The cat sat on the mat.",
]


@pytest.fixture(scope="module")
def variant():
    """Return a function that loads the default encoder with changed settings, each variant once."""
    loaded: dict[str, Encoder] = {}

    def make(**changes) -> Encoder:
        spec = replace(DEFAULT_ENCODER, **changes)
        if repr(spec) not in loaded:
            loaded[repr(spec)] = Encoder(spec)
        return loaded[repr(spec)]

    return make


@pytest.fixture(scope="module")
def encoded(encoder):
    return encoder.encode(TEXTS)


def copy_default_model(path: Path, **settings) -> str:
    """Link the default model's files into a folder, with changed sentence-transformers settings. Return its path."""
    path.mkdir()
    for file in Path(locate_model(DEFAULT_MODEL)).iterdir():
        (path / file.name).symlink_to(file)
    config = path / "config_sentence_transformers.json"
    merged = orjson.loads(config.read_bytes()) | settings
    config.unlink()
    config.write_bytes(orjson.dumps(merged))
    return str(path)


def test_vectors_equal_those_of_sentence_transformers_itself(encoder, encoded):
    theirs = SentenceTransformer(locate_model(DEFAULT_MODEL), device=encoder.device).encode(TEXTS)
    np.testing.assert_allclose(encoded.vectors, theirs, rtol=0, atol=1e-5)
    norms = np.linalg.norm(encoded.vectors.astype(np.float64), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=0, atol=1e-6)
    assert encoded.tokens[TEXTS.index("")] == 2


def test_encode_gives_the_same_vectors_for_texts_in_any_order(encoder):
    texts = [f"{text} {number}" for number in range(32) for text in TEXTS[:6]]
    order = np.random.default_rng(0).permutation(len(texts))
    assert sum(encoder.encode(texts).tokens) > encoder.batch_tokens
    straight, mixed = encoder.encode(texts), encoder.encode([texts[index] for index in order])
    np.testing.assert_allclose(mixed.vectors, straight.vectors[order], rtol=0, atol=1e-5)
    np.testing.assert_array_equal(mixed.tokens, straight.tokens[order])


def test_a_text_has_the_same_vector_alone_and_in_a_batch(encoder, encoded):
    for index, text in enumerate(TEXTS):
        alone = encoder.encode([text])
        np.testing.assert_allclose(encoded.vectors[index], alone.vectors[0], rtol=0, atol=1e-5)
        assert encoded.tokens[index] == alone.tokens[0]


def test_encode_of_no_texts_has_shape_0_by_dimensions(encoder):
    for long_text in ("truncate", "error", "mean"):
        encoded = encoder.encode([], long_text=long_text)
        assert encoded.vectors.shape == (0, encoder.dimensions)
        assert encoded.tokens.shape == (0,)


def test_truncation_side_left_keeps_the_end_and_right_keeps_the_start(encoder):
    text, start, end = "cat " * 300 + "dog " * 254, "cat " * 254, "dog " * 254
    left = encoder.encode([text], truncation_side="left").vectors
    right = encoder.encode([text], truncation_side="right").vectors
    kept_end, kept_start = encoder.encode([end]).vectors, encoder.encode([start]).vectors
    np.testing.assert_allclose(left, kept_end, rtol=0, atol=1e-5)
    np.testing.assert_allclose(right, kept_start, rtol=0, atol=1e-5)
    assert np.abs(left - right).max() > 0.01


def test_truncation_from_the_left_keeps_the_prompt(variant):
    prompted = variant(prompts={"query": "find: "})
    texts = ["cat " * 300 + "dog " * 252, "cat " * 50_000 + "dog " * 252, "dog " * 252, "word " * 253]
    found = prompted.encode(texts, "query", truncation_side="left")
    assert found.tokens.tolist() == [256] * 4
    assert found.cut[[0, 2, 3]].tolist() == [300, 0, 1] and abs(found.cut[1] - 50_000) < 500
    expected = prompted.encode(["find: " + "dog " * 252]).vectors[0]
    for vector in found.vectors[:3]:
        np.testing.assert_allclose(vector, expected, rtol=0, atol=1e-5)


def test_encode_without_truncation_accepts_256_tokens_and_refuses_257(encoder):
    assert encoder.encode(["word " * 254], long_text="error").tokens.tolist() == [256]
    with pytest.raises(TooLongError, match=r"input 1 has 257 tokens.* 256"):
        encoder.encode(["short", "word " * 255], long_text="error")
    with pytest.raises(TooLongError, match="256"):
        encoder.encode(["한국어 문장을 " * 30], long_text="error")  # 240 characters, each up to three tokens


def test_encode_counts_the_tokens_that_it_reads_and_those_that_it_cuts(encoder):
    texts = ["tea", "word " * 254, "word " * 300, "far too long " * 130, "word " * 20_000]
    found = encoder.encode(texts)
    assert found.tokens.tolist() == [3, 256, 256, 256, 256]
    assert found.cut[:4].tolist() == [0, 0, 46, 136]
    assert abs(found.cut[4] - 19_746) < 200  # estimated, as it is not tokenized whole
    assert encoder.encode(texts[2:3], "query", truncation_side="left").cut.tolist() == [46]


def test_long_text_mean_is_the_normalized_mean_of_its_chunks_weighted_by_tokens(encoder):
    numbered = " ".join(f"sentence {number} is about something else." for number in range(200))
    pieces = encoder.divide(["tea", numbered], None, "mean")
    assert pieces.owners[0] == 0 and (pieces.owners[1:] == 1).all() and len(pieces.texts) > 5
    chunks = encoder.encode(pieces.texts[1:], long_text="error")  # none is too long
    mean = (chunks.vectors * chunks.tokens[:, None]).sum(axis=0) / chunks.tokens.sum()
    found = encoder.encode(["tea", numbered], long_text="mean")
    np.testing.assert_allclose(found.vectors[1], mean / np.linalg.norm(mean), atol=1e-6)
    assert found.tokens[1] == chunks.tokens.sum() and not found.cut.any()
    raw = encoder.encode(["tea", numbered], long_text="mean", normalize=False).vectors[1]
    np.testing.assert_allclose(raw, mean, atol=1e-6)
    assert found.vectors[1] @ encoder.encode([numbered]).vectors[0] < 0.99


def test_the_specs_long_text_applies_if_a_call_names_none(tiny, variant):
    text = ["far too long, and more so with every word " * 6]
    plain, meaning = Encoder(tiny), Encoder(replace(tiny, long_text="mean"))
    # Not bit by bit: the weights of two loaded models lie at other addresses, and kernels sum in another order.
    for choice, options in (("mean", {}), ("truncate", {"long_text": "truncate"})):
        expected = plain.encode(text, long_text=choice).vectors
        np.testing.assert_allclose(meaning.encode(text, **options).vectors, expected, atol=1e-6)
    assert np.abs(plain.encode(text).vectors - meaning.encode(text).vectors).max() > 1e-4
    with pytest.raises(TooLongError, match="input 0 has"):
        variant(long_text="error").encode(["far too long " * 100])
    assert meaning.fingerprint == plain.fingerprint and meaning.vectors_key != plain.vectors_key


def test_a_prompt_that_leaves_no_space_for_chunks_is_refused(tiny):
    prompted = Encoder(replace(tiny, prompts={"query": "find what is about "}, long_text="mean"))
    assert prompted.encode(["word " * 100], "query").cut.tolist() == [0]
    wordy = Encoder(replace(tiny, prompts={"query": "word " * 25}, long_text="mean"))
    with pytest.raises(EncoderError, match="leaves 3 tokens to a chunk of tiny"):
        wordy.encode(["word " * 100], "query")


def test_a_prompt_counts_towards_the_limit(variant):
    prompted = variant(prompts={"query": "find: "})
    assert prompted.encode(["word " * 252], prompt_name="query", long_text="error").tokens.tolist() == [256]
    with pytest.raises(TooLongError, match="257"):
        prompted.encode(["word " * 253], prompt_name="query", long_text="error")


def test_an_unknown_prompt_name_is_refused_and_the_known_ones_are_listed(encoder):
    with pytest.raises(EncoderError, match=r"'poem'.*document, query"):
        encoder.encode(["x"], prompt_name="poem")


def test_a_text_with_half_of_a_surrogate_pair_is_named_by_its_position(encoder):
    with pytest.raises(TextError, match=r"input 1: character 4 is \\ud83d, half of a surrogate pair"):
        encoder.encode(["whole \U0001f600", "cut \ud83d"])


def test_the_specs_prompts_join_the_models_and_its_default_prompt_applies_if_none_is_named(tmp_path):
    folder = copy_default_model(tmp_path / "model", prompts={"own": "mine: "}, default_prompt_name="own")
    joined = Encoder(replace(DEFAULT_ENCODER, model=folder, prompts={"given": "yours: "}))
    assert {"own": "mine: ", "given": "yours: "}.items() <= joined.prompts.items()
    np.testing.assert_allclose(
        joined.encode(["tea"]).vectors, joined.encode(["tea"], prompt_name="own").vectors, rtol=0, atol=1e-6
    )
    assert joined.encode(["tea"]).tokens[0] > joined.encode(["tea"], prompt_name="document").tokens[0]


def test_on_batch_is_called_with_increasing_counts_up_to_the_number_of_texts(encoder):
    counts: list[int] = []
    encoder.encode(["word " * 40 + str(number) for number in range(75)], on_batch=counts.append)
    assert counts == sorted(set(counts))
    assert len(counts) > 1
    assert counts[-1] == 75


def test_the_fingerprint_does_not_depend_on_dtype_name_and_folder(tiny, tmp_path):
    moved = shutil.copytree(tiny.model, tmp_path / "elsewhere")
    other = Encoder(replace(tiny, dtype="bfloat16", name="another", model=str(moved)))
    assert other.fingerprint == Encoder(tiny).fingerprint


def test_the_fingerprint_depends_on_pooling_layer_max_length_and_prompts(encoder, variant, tiny):
    changes = ({}, {"pooling": "cls"}, {"pooling": "max"}, {"max_length": 16}, {"prompts": {"query": "find: "}})
    found = [Encoder(replace(tiny, **change)) for change in changes]
    assert len({one.fingerprint for one in found}) == len(changes)
    assert variant(layer=2).fingerprint != encoder.fingerprint
    assert found[3].encode(["word " * 100]).tokens.tolist() == [16]


def test_the_fingerprint_depends_on_what_the_tokenizer_does_with_texts(tiny, tmp_path):
    def edited(name, file, edit):
        """Return the fingerprint of a copy of the model with another tokenizer."""
        folder = Path(shutil.copytree(tiny.model, tmp_path / name))
        settings = json.loads((folder / file).read_text())
        edit(settings)
        (folder / file).write_text(json.dumps(settings))
        return Encoder(replace(tiny, model=str(folder))).fingerprint

    def swap(tokenizer):
        vocabulary = tokenizer["model"]["vocab"]
        first, second = [word for word in vocabulary if word.isalpha()][-2:]
        vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]

    same = edited("same", "tokenizer.json", lambda tokenizer: tokenizer.update(truncation=None, padding=None))
    swapped = edited("swapped", "tokenizer.json", swap)
    cased = edited("cased", "tokenizer_config.json", lambda settings: settings.update(do_lower_case=False))
    assert same == Encoder(tiny).fingerprint
    assert len({same, swapped, cased}) == 3


def test_an_encoder_that_refuses_long_texts_loads_though_it_reads_less_than_the_probe_texts(tiny):
    encoder = Encoder(replace(tiny, max_length=8, long_text="error"))
    with pytest.raises(TooLongError, match=r"has \d+ tokens.* 8"):
        encoder.encode(["word " * 20])


def test_a_model_without_the_files_of_its_tokenizer_is_refused(tiny, tmp_path):
    folder = Path(shutil.copytree(tiny.model, tmp_path / "model"))
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        (folder / name).unlink(missing_ok=True)
    with pytest.raises(EncoderError, match="has a tokenizer that knows no words"):
        Encoder(replace(tiny, model=str(folder)))


@pytest.mark.parametrize(
    ("tokens", "known"),
    [
        ([], False),
        (["[CLS]", "<s>", "!"], False),
        (["the", "and"], True),
        (["▁и", "▁дом"], True),
        (["東", "京"], True),
        (["zoning", "permit"], True),  # of one subject alone
    ],
)
def test_a_tokenizer_is_refused_only_if_it_tells_no_words_apart(tiny, tokens, known):
    vocabulary = {token: number for number, token in enumerate(["[UNK]", *tokens])}
    for kind in (models.WordLevel(vocabulary, "[UNK]"), models.WordPiece(vocabulary, unk_token="[UNK]")):
        tokenizer = Tokenizer(kind)
        of_sentences = any(token.startswith("▁") for token in tokens)
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace() if of_sentences else pre_tokenizers.BertPreTokenizer()
        with nullcontext() if known else pytest.raises(EncoderError, match="knows no words"):
            require_words(tiny, tokenizer)


def test_byte_and_character_tokenizers_are_not_refused(tiny):
    for trained in (ByteLevelBPETokenizer(), CharBPETokenizer()):
        trained.train_from_iterator(["пример текста"], vocab_size=300, show_progress=False)
        require_words(tiny, trained)


def test_the_default_encoder_has_the_fingerprint_that_starter_chains_and_earlier_indexes_store(encoder):
    assert encoder.fingerprint == "717f8caa72867d08da845acee1eb648e"


def test_layer_2_gives_the_normalized_mean_of_that_layers_hidden_states(encoder, variant):
    features = encoder.model.preprocess(["The cat sat on the mat."])
    with torch.no_grad():
        states = (
            encoder.model[0]
            .auto_model(
                input_ids=features["input_ids"], attention_mask=features["attention_mask"], output_hidden_states=True
            )
            .hidden_states
        )
    expected = torch.nn.functional.normalize(states[2].mean(dim=1), dim=1).numpy()
    np.testing.assert_allclose(variant(layer=2).encode(["The cat sat on the mat."]).vectors, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        *(("layer", value, "layer") for value in (2, 0)),  # the model has one
        *(("max_length", value, "max_length") for value in (65, 0)),  # and 64 positions
        ("model", "/somewhere/nowhere", "nowhere"),
    ],
)
def test_a_layer_or_positions_that_the_model_lacks_and_a_missing_folder_are_refused(tiny, setting, value, reason):
    with pytest.raises(EncoderError, match=reason):
        Encoder(replace(tiny, **{setting: value}))


def test_encode_raises_for_a_text_whose_vector_overflows_and_names_its_position(fragile_model):
    """In float32 the same model has a vector for it."""
    spec = EncoderSpec("fragile", str(fragile_model), dtype="float16")
    fragile = Encoder(spec)
    assert np.isfinite(fragile.encode(TEXTS).vectors).all()
    for texts, position in ((["tea", "a volcano", "tea", "volcano"], 1), (["volcano"], 0), ([*TEXTS, "volcano"], 9)):
        for options in ({}, {"normalize": False}):
            with pytest.raises(NotFiniteError, match=f"input {position}: fragile gives NaN or inf .* float16") as error:
                fragile.encode(texts, **options)
            assert error.value.position == position and "bfloat16 or float32" in str(error.value)
    assert np.isfinite(Encoder(replace(spec, dtype="float32")).encode(["volcano"]).vectors).all()


def test_an_encoder_that_overflows_on_ordinary_texts_is_refused_when_it_is_loaded(fragile_model, tmp_path):
    from safetensors.torch import load_file, save_file

    shutil.copytree(fragile_model, tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    weights["embeddings.word_embeddings.weight"] *= 1e8
    save_file(weights, tmp_path / "model" / "model.safetensors", {"format": "pt"})
    with pytest.raises(EncoderError, match="the encoder hot cannot be used, as 'yes' shows: .* float16"):
        Encoder(EncoderSpec("hot", str(tmp_path / "model"), dtype="float16"))


def test_a_compiled_encoder_calls_the_compiled_forward_with_dynamic_shapes(monkeypatch, encoded):
    calls = []

    def compiled(forward, dynamic):
        def call(*arguments, **more):
            calls.append(dynamic)
            return forward(*arguments, **more)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    found = Encoder(replace(DEFAULT_ENCODER, compile=True)).encode(TEXTS)
    assert calls and all(calls)
    np.testing.assert_allclose(found.vectors, encoded.vectors, rtol=0, atol=1e-5)
