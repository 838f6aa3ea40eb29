"""Results of evaluations of fitted methods, built from given scores."""

from pathlib import Path

import pytest

from lathe.training.evaluation.encoders import Member
from lathe.training.evaluation.methods import build_control_method
from lathe.training.evaluation.scores import Score, TaskDescription
from lathe.training.evaluation.suites import Suite
from research.fitted_methods.evaluation import FittedRequest, FittedResult, FittedResults
from research.fitted_methods.methods import FittableMethod, build_reducer, label_method, list_debiasing_methods
from research.paper_findings.grid import Grid

WIDTH = 8
KNOWN = {method.name: method for method in [label_method(build_control_method()), *list_debiasing_methods()]}


def build_method(name):
    """Build the method of a display name: a known one, `pca:4`, or a chain."""
    if name in KNOWN:
        return KNOWN[name]
    kind, _, size = name.partition(":")
    if size:
        return build_reducer(name, kind, int(size))
    return FittableMethod(name, "chain", label=name)


def build_results(
    values,
    types=None,
    languages=None,
    families=None,
    norms=None,
    methods=(),
    intrinsic=None,
    problems=None,
    broken=None,
    title="A suite",
    **asked,
):
    """Build results with a score for each (encoder, method, task). None stands for a failure.

    Everything else is by name: types and languages of tasks, families and norms of encoders, intrinsic measures by
    (encoder, method), problems of encoders, errors of broken tasks. Other options go to the request.
    """
    types, languages, families, norms = types or {}, languages or {}, families or {}, norms or {}
    given = {method.name: method for method in methods}
    names = list(dict.fromkeys(encoder for encoder, _, _ in values))
    tasks = [
        TaskDescription(
            task, f"key of {task}", types.get(task, "STS"), languages.get(task, "en"), "main", ((None, "text"),), 1
        )
        for task in dict.fromkeys(task for _, _, task in values)
    ]
    tasks += [TaskDescription(task, "", error=why) for task, why in (broken or {}).items()]
    encoders = [
        FittedResult(
            Member(name, f"print of {name}", f"output of {name}", WIDTH, {}, None, families.get(name, name)),
            {m: given.get(m) or build_method(m) for e, m, _ in values if e == name},
            (problems or {}).get(name, {}),
            norms.get(name),
            {method: found for (encoder, method), found in (intrinsic or {}).items() if encoder == name},
        )
        for name in names
    ]
    scores = [
        Score(
            task=task,
            task_key=f"key of {task}",
            encoder=encoder,
            fingerprint=f"print of {encoder}",
            method=method,
            method_key=f"key of {method}",
            score=value,
            metrics={} if value is None else {"main": value, "other": value / 2},
            seconds=0.25,
            error='RuntimeError: out, of "memory"' if value is None else None,
        )
        for (encoder, method, task), value in values.items()
    ]
    request = FittedRequest(Suite("suite", title, ()), (), **{"out": Path("nowhere"), **asked})
    return FittedResults(request, tasks, encoders, scores, corpus_rows=1000)


@pytest.fixture(scope="session")
def build():
    """Return `build_results`."""
    return build_results


@pytest.fixture(scope="session")
def grid_of():
    """Return a function that builds the grid of `build_results`."""
    return lambda *args, **options: Grid(build_results(*args, **options))


@pytest.fixture(scope="session")
def table():
    """Return a function that builds one encoder's scores from those of each method, in the order of the tasks."""

    def make(encoder, tasks, **by_method):
        methods = {name.replace("_", " "): scores for name, scores in by_method.items()}
        return {
            (encoder, method, task): score
            for method, scores in methods.items()
            for task, score in zip(tasks, scores, strict=True)
        }

    return make
