"""What fits of hours need: disk space, sources that do not change, and resuming after a stop."""

import json

import numpy as np
import pytest

from lathe.training.errors import FitError, SourceError
from lathe.training.fitting.encoding import encode_source
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit
from lathe.training.sources.source import open_source
from lathe.transforms.progress import no_progress

STEPS = [{"kind": "r2"}, {"kind": "geopres", "dimensions": 4, "steps": 12, "batch": 64}]


def fit(source, workspace, on_progress=no_progress):
    with fit_new_chain(NewFit(name="long", steps=STEPS, source=str(source)), None, workspace, on_progress) as fitted:
        return fitted.chain


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.npy"
    np.save(path, np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32) + 0.3)
    return path


@pytest.fixture
def stopped_fit(vectors, stopped, tmp_path):
    """Return the workspace of a fit that was stopped after its last step, whose state is always stored."""

    def stop(_fraction, message):
        if "step 12 of 12" in message:
            raise stopped

    with pytest.raises(stopped):
        fit(vectors, tmp_path / "work", stop)
    return tmp_path / "work"


def test_a_fit_stopped_in_training_resumes_from_its_checkpoint_with_an_equal_result(vectors, stopped_fit, tmp_path):
    seen = []
    resumed = fit(vectors, stopped_fit, lambda _fraction, message: seen.append(message))
    assert "fitting geopres" in seen
    assert not any("step" in message for message in seen)
    assert resumed == fit(vectors, tmp_path / "elsewhere")


def test_provenance_holds_the_training_log(vectors, tmp_path):
    chain = fit(vectors, tmp_path / "work")
    (record,) = chain.metadata["provenance"]["training"]
    assert record["kind"] == "geopres"
    assert (record["steps"], record["recipe"]["batch"]) == (12, 64)
    assert record["loss"] < 1
    assert not record["stopped_early"]
    json.dumps(chain.metadata, allow_nan=False)


def test_a_disk_without_space_for_all_vectors_is_refused_before_encoding(counting_hashes, tmp_path):
    source = tmp_path / "texts.txt"
    source.write_text("\n".join(f"text {i}" for i in range(5000)))
    encoder = counting_hashes()
    with pytest.raises(FitError, match=r"5,000 vectors of 16 dimensions take 0\.0 GB, and the disk has 0\.0 GB left"):
        encode_source(open_source(str(source)), encoder, tmp_path / "work", no_progress, free_bytes=lambda _: 5000 * 16)
    assert encoder.calls == 0


def test_a_file_that_gets_shorter_while_it_is_encoded_is_refused(counting_hashes, tmp_path):
    lines = [f"text {i} and what makes a line long {'.' * 100}\n" for i in range(3000)]
    path = tmp_path / "texts.txt"
    path.write_text("".join(lines))

    def cut_after_the_first_batch(_fraction, _message):
        path.write_text("".join(lines[:2000]))

    with pytest.raises(SourceError, match=r"texts\.txt ended early: it had 2,048 rows or more, and now has 2,000"):
        encode_source(open_source(str(path)), counting_hashes(), tmp_path / "work", cut_after_the_first_batch)
