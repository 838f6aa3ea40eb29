"""Results of evaluations of small suites, and data sets with stored vectors."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lathe.training.evaluation.encoders import Member, text_key, write_vectors
from lathe.training.evaluation.methods import CONTROL, CONTROL_METHOD
from lathe.training.evaluation.suites import Entry, Suite, open_suite
from lathe.training.evaluation.worker import Score, TaskDescription, collect_texts, load_task
from research.fitted_methods.evaluation import FittedRequest, FittedResult, FittedResults
from research.fitted_methods.methods import label_method

DIMENSIONS = 12
PROMPTS = {"query": "ask: ", "document": "read: "}


def build_results(values, types, title="finance", missing=None, broken=None):
    """Return results of raw vectors by (encoder, task), None for a failure.

    The suite's only entry has none.
    """
    encoders = list(dict.fromkeys(encoder for encoder, _ in values))
    tasks = [TaskDescription(task, f"key of {task}", type_, "en", "main") for task, type_ in types.items()]
    tasks += [TaskDescription(task, "", error=why) for task, why in (broken or {}).items()]
    members = [Member(name, f"print of {name}", f"output of {name}", DIMENSIONS, {}, None, name) for name in encoders]
    scores = [
        Score(task, f"key of {task}", encoder, f"print of {encoder}", CONTROL, CONTROL, value)
        if value is not None
        else Score(task, f"key of {task}", encoder, f"print of {encoder}", CONTROL, CONTROL, None, error="out of luck")
        for (encoder, task), value in values.items()
    ]
    suite = Suite(f"path of {title}", title, (Entry(f"entry of {title}", "mteb", title),))
    results = [FittedResult(member, {CONTROL: label_method(CONTROL_METHOD)}, {}) for member in members]
    request = FittedRequest(suite, (), Path("nowhere"))
    return FittedResults(request, tasks, results, scores, missing or ())


@pytest.fixture(scope="session")
def build():
    """Return `build_results`."""
    return build_results


@pytest.fixture
def stored(tmp_path, write_data_set):
    """Return a function that writes a data set and random vectors of its texts.

    It returns both locations.
    """

    def make(meta, files, qrels=None, limit=None):
        (entry,) = open_suite(str(write_data_set(tmp_path / "data" / meta["task"], meta, files, qrels))).entries
        load_task.cache_clear()
        entry = replace(entry, limit=limit)
        collected = collect_texts(entry, PROMPTS)
        assert collected.error is None
        member = Member("random", "fingerprint", "fingerprint", DIMENSIONS, PROMPTS, None, "random")
        vectors = np.random.default_rng(1).standard_normal((len(collected.asked), DIMENSIONS)).astype(np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        keys = [text_key(text, None if name is None else PROMPTS[name]) for name, text in collected.asked]
        write_vectors(tmp_path / "vectors", [(keys, vectors)])
        return entry, (member, tmp_path / "vectors")

    return make


class Evaluated:
    """Suite whose texts have random vectors by each encoder, with random scores."""

    def __init__(self, folder, encoders):
        suite = open_suite(str(folder))
        self.entries = suite.entries
        members = [Member(e, f"print of {e}", e, DIMENSIONS, {}, None, e) for e in encoders]
        self.tasks = [collect_texts(entry, {}) for entry in self.entries]
        for seed, member in enumerate(members):
            self.store(folder, member.name, [text for task in self.tasks for _, text in task.asked], seed)
        random = np.random.default_rng(0)
        scores = [
            Score(task.task, task.key, e, f"print of {e}", CONTROL, CONTROL, float(random.random()))
            for task in self.tasks
            for e in encoders
        ]
        request = FittedRequest(suite, (), folder)
        results = [FittedResult(member, {CONTROL: label_method(CONTROL_METHOD)}, {}) for member in members]
        self.results = FittedResults(request, self.tasks, results, scores)

    @staticmethod
    def store(folder, encoder, texts, seed):
        """Store vectors of texts. Those of one suite point in about the same direction."""
        keys = list(dict.fromkeys(map(text_key, texts)))
        vectors = np.random.default_rng(seed).standard_normal((len(keys), DIMENSIONS)).astype(np.float32)
        vectors[:, 0] += 3
        vectors[:, 1 + len(folder.name) % 2] += 2
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        write_vectors(folder / "vectors" / encoder, [(keys, vectors)])


@pytest.fixture(scope="session")
def evaluated():
    """Return `Evaluated`."""
    return Evaluated
