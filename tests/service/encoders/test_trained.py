import pytest

from lathe.service.encoders.trained import TrainedEncoders
from lathe.service.errors import BadValueError
from lathe.transforms.errors import ArtifactError

MANIFEST = {"method": "pft", "base": {"name": "tiny", "long_text": "error"}, "certificate": {}}


@pytest.fixture
def model(tmp_path):
    """Return a folder with the files of a model."""
    folder = tmp_path / "model"
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "modules.json").write_text("[]")
    (folder / "1_Pooling" / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


@pytest.fixture
def trained(tmp_path):
    return TrainedEncoders(tmp_path / "trained")


def allow(_manifest):
    return []


def test_a_job_that_runs_twice_publishes_once(trained, model):
    assert trained.publish("mine", model, MANIFEST, None, job="a") == (1, True)
    assert trained.publish("mine", model, MANIFEST, None, job="a") == (1, True)
    assert trained.versions("mine") == [1]


@pytest.mark.parametrize("change", ["changed", "missing", "added"])
def test_a_version_whose_files_are_not_those_that_were_published_is_not_made_live(trained, model, change):
    trained.publish("mine", model, MANIFEST, None)
    trained.publish("mine", model, MANIFEST, False)
    weights = trained.root / "mine" / "2" / "model" / "model.safetensors"
    if change == "changed":
        weights.write_bytes(bytes(99))
    elif change == "missing":
        weights.unlink()
    else:
        weights.with_name("more.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not those that were published"):
        trained.promote("mine", 2, allow)
    assert trained.live("mine") == 1


@pytest.mark.parametrize("name", ["pytorch_model.bin", "modeling.py", ".hidden.json"])
def test_pickles_and_code_are_no_files_of_a_version(trained, model, name):
    (model / name).write_bytes(b"x")
    with pytest.raises(BadValueError, match=name):
        trained.publish("mine", model, MANIFEST, None)
    assert trained.names() == []
