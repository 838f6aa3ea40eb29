import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import JobError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.regularizers.reze import Reze

TEXTS = ["rain over hills", "the bank", "a lathe", "spring", "tomatoes", "a wall", "a ledger", "interest", "the end"]
SETTINGS = RegularizerSettings(scale=0.5)


@pytest.fixture(scope="module")
def narrow(tiny_model):
    """Load the tiny model as an encoder, once."""
    from lathe.training.encoder.spec import EncoderSpec

    return Encoder(EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32"), "cpu")


def mixture(texts=TEXTS):
    """Build a mixture of pairs of these texts, three pairs for each source."""
    return Mixture(texts, texts[::-1], np.arange(len(texts)) // 3, ["a", "b", "c"][: -(-len(texts) // 3)], [])


@pytest.fixture
def prepare(narrow, tmp_path):
    """Return a function that prepares REZE targets in a folder. It also returns messages about encoding."""

    def made(pairs, settings=SETTINGS, folder="targets"):
        told = []
        found = Reze(settings)
        found.prepare(narrow, pairs, tmp_path / folder, tmp_path / "cache", lambda _, sentence: told.append(sentence))
        return found, [sentence for sentence in told if "encoding" in sentence]

    return made


def test_prepare_encodes_each_text_once_for_all_jobs_that_share_the_cache(prepare, narrow, monkeypatch):
    encode, counts = narrow.encode, []
    monkeypatch.setattr(
        narrow, "encode", lambda texts, **options: counts.append(len(texts)) or encode(texts, **options)
    )
    first, told = prepare(mixture())
    assert (counts, told) == ([9], ["encoding the reference, 9 of 9 texts"])
    again, _ = prepare(mixture(), folder="others")
    assert counts == [9]
    np.testing.assert_array_equal(first.targets, again.targets)
    prepare(mixture([*TEXTS[:-1], "new"]), folder="third")
    assert counts == [9, 1]


@pytest.mark.parametrize("left", [(), ("relations.npy", "manifest.json"), ("manifest.json",)])
def test_prepare_completes_targets_that_a_kill_left_unfinished(prepare, tmp_path, left):
    expected, _ = prepare(mixture())
    rows = np.array(expected.targets)
    for path in (tmp_path / "targets").iterdir():
        if path.name not in left:
            path.unlink()
    (tmp_path / "targets" / ".targets.npy").write_bytes(b"cut")
    found, _ = prepare(mixture())
    np.testing.assert_array_equal(found.targets, rows)
    with pytest.raises(JobError, match="the pairs changed"):
        prepare(mixture(TEXTS[::-1]))


def test_prepare_computes_relations_without_a_manifest_again(prepare, tmp_path):
    prepare(mixture())
    (tmp_path / "targets" / "manifest.json").unlink()
    found, _ = prepare(mixture(TEXTS[::-1]))
    expected, _ = prepare(mixture(TEXTS[::-1]), folder="fresh")
    np.testing.assert_array_equal(found.targets, expected.targets)


def test_prepare_computes_truncated_relations_again(prepare, tmp_path):
    rows = np.array(prepare(mixture())[0].targets)
    path = tmp_path / "targets" / "relations.npy"
    path.write_bytes(path.read_bytes()[:-64])
    np.testing.assert_array_equal(prepare(mixture())[0].targets, rows)


def test_prepare_refuses_targets_of_other_pairs_or_settings_and_a_damaged_manifest(prepare, tmp_path):
    prepare(mixture())
    with pytest.raises(JobError, match="the pairs changed"):
        prepare(mixture(TEXTS[:6]))
    with pytest.raises(JobError, match="other settings of the regularizer"):
        prepare(mixture(), SETTINGS.model_copy(update={"strength": 0.1}))
    prepare(mixture(), SETTINGS.model_copy(update={"loss_weight": 9.0}))
    (tmp_path / "targets" / "manifest.json").write_bytes(b"{")
    with pytest.raises(JobError, match="is damaged"):
        prepare(mixture())
