"""Data sets that share texts with tests of others, and experiments on them with the tiny model."""

from pathlib import Path

import orjson
import pytest

from lathe.training.encoder.spec import EncoderSpec
from research.reze_experiment.run import run_experiment
from research.reze_experiment.settings import ExperimentSettings

WORDS = ["profit", "ledger", "sparrow", "tulip", "kettle", "soup", "debt", "loan", "robin", "hedge"]
DONE = {"10": "sold", "2": "seen", "1": "boiled"}
SHARED = {"tone": "THE  sparrow was boiled 32 times", "search": "What of  the hedge on 39?"}
"""Of each target's test, a text as another source writes it."""


def tones(start, stop):
    labels = [list(DONE)[n % 3] for n in range(start, stop)]
    return [
        {"text": f"the {WORDS[n % 10]} was {DONE[label]} {n} times", "label": label}
        for n, label in zip(range(start, stop), labels, strict=True)
    ]


def topics(start, stop):
    return [{"text": f"a {WORDS[n % 10]} of {n}", "label": ["money", "garden"][n % 2]} for n in range(start, stop)]


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory, write_data_set) -> Path:
    """Write two targets, tone and search, another classification and pairs.

    Some texts are in both tests.
    """
    root = tmp_path_factory.mktemp("experiment") / "data"
    files = {"train.jsonl": [*tones(0, 30), tones(32, 33)[0]], "test.jsonl": tones(30, 50)}
    write_data_set(root / "tone", {"task": "classification"}, files)
    (root / "tone" / "labels.json").write_bytes(orjson.dumps({label: f"it was {said}" for label, said in DONE.items()}))
    documents = [{"_id": f"d{n}", "text": f"{WORDS[n % 10]} and {WORDS[n % 7]} of day {n}"} for n in range(40)]
    queries = [{"_id": f"q{n}", "text": f"what of the {WORDS[n % 10]} on {n}?"} for n in range(40)]
    judged = {"train": range(24), "test": range(24, 40)}
    qrels = {split: [(f"q{n}", f"d{n}", 1) for n in some] for split, some in judged.items()}
    files = {"corpus.jsonl": documents, "queries.jsonl": queries}
    write_data_set(root / "search", {"task": "retrieval"}, files, qrels)
    shared = [{"text": text, "label": "garden"} for text in SHARED.values()]
    files = {"train.jsonl": [*topics(0, 24), *shared], "test.jsonl": topics(24, 30)}
    write_data_set(root / "topic", {"task": "classification"}, files)
    pairs = [{"anchor": f"{WORDS[n % 10]} {n} is", "positive": f"{n} {WORDS[n % 10]} it is"} for n in range(20)]
    pairs.append({"anchor": "what is that", "positive": documents[30]["text"].upper()})
    write_data_set(root / "twins", {"task": "pairs"}, {"train.jsonl": pairs})
    return root


@pytest.fixture(scope="session")
def settings_of(tiny_data):
    """Return a function that builds settings of an experiment on `tiny_data`."""

    def build(targets=("tone", "search"), **given):
        wanted = {
            "sources": [{"folder": tiny_data}],
            "targets": [{"folder": tiny_data / name} for name in targets],
            "rows": (8,),
            "seeds": (0,),
            "learning_rates": (1e-3,),
            "training": {"precision": "float32", "max_length": 16, "log_steps": 2},
        }
        return ExperimentSettings.model_validate(wanted | given)

    return build


@pytest.fixture(scope="session")
def tiny_spec(tiny_model):
    """Return the spec of the tiny model, for fixtures of any scope."""
    return EncoderSpec(name="tiny", model=str(tiny_model), dtype="float32")


@pytest.fixture(scope="session")
def experiment(tiny_spec):
    """Return a function that runs an experiment in one process."""

    def run(settings, out, spec=tiny_spec, told=None):
        def progress(fraction, sentence):
            if told is not None:
                told.append((fraction, sentence))

        return run_experiment(settings, spec, "cpu", out, 1, progress)

    return run


@pytest.fixture(scope="session")
def shared_texts():
    """Return the text that the sources share with the test of each target, by target."""
    return SHARED
