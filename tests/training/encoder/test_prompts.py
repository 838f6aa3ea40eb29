"""Chat templates of instruct models: found, warned of, and switched off."""

import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.prompts import SETTINGS_FILE, find_chat_template
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import TooLongError

TEXTS = ["tea", "a red bicycle", "The ledger is closed at the end of every month."]


@pytest.fixture(scope="module")
def encoders(chatty_model):
    """Return the encoder of each setting."""
    spec = EncoderSpec("chatty", str(chatty_model))
    return {choice: Encoder(replace(spec, chat_template=choice)) for choice in (None, "on", "off")}


def read(folder, name):
    """Return the content of a file of a model's folder, or None."""
    return (folder / name).read_bytes() if (folder / name).is_file() else None


def test_chat_template_off_gives_the_vectors_of_the_model_without_a_template(encoders, tiny_model, chatty_model):
    """Otherwise sentence-transformers wraps the texts."""
    plain = Encoder(EncoderSpec("tiny", str(tiny_model)))
    found = encoders["off"].encode(TEXTS)
    np.testing.assert_allclose(found.vectors, plain.encode(TEXTS).vectors, atol=1e-6)
    assert found.tokens.tolist() == plain.encode(TEXTS).tokens.tolist() == [3, 5, 13]
    for choice in (None, "on"):
        wrapped = encoders[choice].encode(TEXTS)
        np.testing.assert_allclose(wrapped.vectors, SentenceTransformer(str(chatty_model)).encode(TEXTS), atol=1e-5)
        assert wrapped.tokens.tolist() == [10, 12, 20]
        assert np.abs(wrapped.vectors - found.vectors).max() > 0.1
    model = load_model(encoders["off"].spec, "cpu")
    np.testing.assert_allclose(model.encode(TEXTS, normalize_embeddings=True), found.vectors, atol=1e-5)


def test_only_a_template_that_no_setting_decides_on_is_warned_of(encoders, chatty_model, caplog):
    assert encoders["on"].warning is None and encoders["off"].warning is None
    with caplog.at_level(logging.WARNING):
        Encoder(EncoderSpec("chatty", str(chatty_model)))
    assert caplog.messages == [encoders[None].warning]
    assert "chatty wraps its texts in the chat template of an instruct model, 7 tokens more each" in caplog.text


def test_the_fingerprint_differs_only_if_a_template_is_switched_off(encoders, encoder):
    assert encoders[None].fingerprint == encoders["on"].fingerprint != encoders["off"].fingerprint
    assert Encoder(replace(encoder.spec, chat_template="off")).fingerprint == encoder.fingerprint


def test_the_tokens_of_a_template_count_towards_the_limit(encoders):
    wrapped, plain = encoders["on"], encoders["off"]
    words = ["word " * 23, "word " * 24]
    assert wrapped.encode(words[:1], long_text="error").tokens.tolist() == [32]
    with pytest.raises(TooLongError, match="input 1 has 33 tokens, more than the 32 that chatty reads"):
        wrapped.encode(words, long_text="error")
    assert wrapped.encode(words).cut.tolist() == [0, 1] and plain.encode(words).cut.tolist() == [0, 0]
    pieces = wrapped.divide(["word " * 100], None, "mean").texts
    assert wrapped.encode(pieces, long_text="error").cut.tolist() == [0] * len(pieces)


def test_files_tell_of_a_template_without_loading_the_model(chatty_model, tiny_model, encoders, tmp_path):
    bare = chatty_model.parent / "bert"
    assert find_chat_template(partial(read, chatty_model)) and find_chat_template(partial(read, bare))
    assert not find_chat_template(partial(read, tiny_model)) and not find_chat_template(partial(read, tmp_path))
    encoders["off"].restore_model()  # as an export does
    encoders["off"].model.save(str(tmp_path / "saved"))  # the template is there, but not used
    assert (tmp_path / "saved" / "chat_template.jinja").exists()
    assert not find_chat_template(partial(read, tmp_path / "saved"))
    template = {"tokenizer_config.json": b'{"chat_template": "{{ x }}"}'}
    assert find_chat_template(template.get)
    saved_early = {"modules.json": b'[{"path": "0_Transformer"}]', f"0_Transformer/{SETTINGS_FILE}": b"{}"}
    assert not find_chat_template((template | saved_early).get)
    assert not find_chat_template({"modules.json": b"[{}]", SETTINGS_FILE: b"{"}.get)  # damaged
