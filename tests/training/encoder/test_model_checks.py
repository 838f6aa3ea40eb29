"""The default model's files are those of its package, or are refused by name."""

from pathlib import Path

import pytest

from lathe.training.encoder import loading
from lathe.training.encoder.model_checks import PACKAGED_FILES
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL
from lathe.training.errors import EncoderError


def change_letters(path):
    path.write_bytes(path.read_bytes().replace(b"lowercase", b"uppercase", 1))


def cut_off(path):
    path.write_bytes(path.read_bytes()[:1_000_000])


@pytest.mark.parametrize(
    ("name", "damage"),
    [("tokenizer.json", change_letters), ("model.safetensors", cut_off), ("1_Pooling/config.json", Path.unlink)],
)
def test_a_file_of_the_default_model_that_is_another_is_refused_by_name(tmp_path, monkeypatch, name, damage):
    for file in PACKAGED_FILES:
        copy, real = tmp_path / file, Path(loading.locate_model(DEFAULT_MODEL), file)
        copy.parent.mkdir(exist_ok=True)
        if file == name:
            copy.write_bytes(real.read_bytes())
        else:
            copy.symlink_to(real)
    damage(tmp_path / name)
    monkeypatch.setattr(loading, "locate_model", lambda _: str(tmp_path))
    with pytest.raises(EncoderError, match=rf"^{name} of the default model .* pip install --force-reinstall"):
        loading.load_model(DEFAULT_ENCODER, "cpu")
