import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.plain_model import PlainModel, read_plain_settings
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.errors import EncoderError

TEXTS = [
    "A lathe turns a workpiece against a tool.",
    "",
    "  naïve text\twith\nspaces ",
    "東京は日本の首都です。 🙂",
    *(" ".join(["shavings fall"] * length) for length in (1, 3, 7, 20, 90, 400)),
]


def change_settings(folder, file, **settings):
    """Merge settings into one of a model's JSON files; a setting of None is removed."""
    path = folder / file
    merged = (json.loads(path.read_text()) if path.exists() else {}) | settings
    path.write_text(json.dumps({name: value for name, value in merged.items() if value is not None}))


@pytest.fixture
def folder(tiny_model, tmp_path):
    """Return a copy of the tiny model's folder."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def write_tiny_model(folder, model_class, **settings):
    """Replace the transformer of a folder by a random one of another class."""
    from transformers import AutoConfig

    torch.manual_seed(0)
    base = AutoConfig.from_pretrained(folder)
    config = model_class.config_class(
        vocab_size=base.vocab_size,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        **settings,
    )
    model_class(config).save_pretrained(folder)


def test_the_default_encoder_has_the_vectors_of_sentence_transformers_bit_for_bit():
    require_equal_encoders(DEFAULT_ENCODER)


def test_another_plain_model_has_the_vectors_of_sentence_transformers_bit_for_bit(folder):
    from transformers import RobertaModel

    write_tiny_model(folder, RobertaModel, max_position_embeddings=66, pad_token_id=1)
    change_settings(folder, "1_Pooling/config.json", pooling_mode="cls")
    change_settings(
        folder,
        "config_sentence_transformers.json",
        prompts={"query": "Represent this: ", "title": None},
        default_prompt_name="query",
    )
    spec = EncoderSpec(name="tiny", model=str(folder), dtype="bfloat16", prompts=(("document", "passage: "),))
    require_equal_encoders(spec)
    require_equal_encoders(replace(spec, attention="eager"))
    require_equal_encoders(replace(spec, max_length=9))


def require_equal_encoders(spec):
    """Check that an encoder loaded both ways has the same fingerprint, description and vectors."""
    expected, found = Encoder(spec, "cpu"), Encoder(spec, "cpu", allow_plain=True)
    assert isinstance(found.model, PlainModel) and not isinstance(expected.model, PlainModel)
    assert found.fingerprint == expected.fingerprint and found.describe() == expected.describe()
    for name in ("agreement", "unpadded", "slack_tokens", "model_bytes", "warning", "default_prompt_name"):
        assert getattr(found, name) == getattr(expected, name), name
    assert (found.fast_tokenizer is None) == (expected.fast_tokenizer is None)
    for prompt_name in (None, *expected.prompts):
        for normalize in (True, False):
            ours, theirs = (encoder.encode(TEXTS, prompt_name, normalize=normalize) for encoder in (found, expected))
            np.testing.assert_array_equal(ours.vectors, theirs.vectors)
            np.testing.assert_array_equal(ours.tokens, theirs.tokens)
            np.testing.assert_array_equal(ours.cut, theirs.cut)


def test_a_model_with_any_other_setting_is_not_plain(folder):
    for file, settings in (
        ("config_sentence_transformers.json", {"truncate_dim": 8}),
        ("1_Pooling/config.json", {"pooling_mode": "lasttoken"}),
        ("tokenizer_config.json", {"chat_template": "{{ messages }}"}),
        ("adapter_config.json", {"peft_type": "LORA"}),
        ("config.json", {"model_type": "mpnet"}),
    ):
        before = (folder / file).read_bytes() if (folder / file).exists() else None
        change_settings(folder, file, **settings)
        assert read_plain_settings(folder) is None
        (folder / file).unlink()
        if before:
            (folder / file).write_bytes(before)
    assert read_plain_settings(folder) is not None


def test_a_model_with_another_module_is_not_plain(folder):
    modules = json.loads((folder / "modules.json").read_text())
    for changed in (
        modules[:1],
        [*modules, modules[-1]],
        [modules[0], modules[1] | {"type": "sentence_transformers.models.Dense"}],
        [modules[0], modules[1] | {"type": "own.Pooling"}],
        [modules[0], modules[1] | {"path": "../1_Pooling"}],
    ):
        (folder / "modules.json").write_text(json.dumps(changed))
        assert read_plain_settings(folder) is None


def test_what_the_spec_changes_is_left_to_sentence_transformers(folder):
    spec = EncoderSpec(name="tiny", model=str(folder), dtype="float32")
    for changed in (replace(spec, pooling="cls"), replace(spec, layer=1)):
        assert not isinstance(Encoder(changed, "cpu", allow_plain=True).model, PlainModel)
    with pytest.raises(EncoderError, match="Default prompt name 'unknown'"):
        Encoder(replace(spec, default_prompt_name="unknown"), "cpu", allow_plain=True)
