"""Results of evaluations, built from given scores."""

from pathlib import Path

import pytest

from lathe.training.evaluation.encoders import Member
from lathe.training.evaluation.methods import CONTROL, CONTROL_METHOD, EvaluatedMethod
from lathe.training.evaluation.run import EncoderResult, EvaluationResults, Request
from lathe.training.evaluation.suites import Suite
from lathe.training.evaluation.worker import Score, TaskDescription

WIDTH = 8


def build_method(name):
    """Build the method of a display name: raw vectors, a chain, or a chain that is rescored."""
    if name == CONTROL:
        return CONTROL_METHOD
    return EvaluatedMethod(name, "rescored" if name.endswith(" rescored") else "chain")


def build_results(
    values, types=None, languages=None, problems=None, broken=None, title="A suite", units=None, metric="main", **asked
):
    """Build results with a score for each (encoder, method, task). None stands for a failure.

    Everything else is by name: types and languages of tasks, problems of encoders, errors of broken tasks, values of
    units by (encoder, method, task). The main score of all tasks is `metric`. Other options go to the request.
    """
    types, languages = types or {}, languages or {}
    names = list(dict.fromkeys(encoder for encoder, _, _ in values))
    tasks = [
        TaskDescription(
            task, f"key of {task}", types.get(task, "STS"), languages.get(task, "en"), metric, ((None, "text"),), 1
        )
        for task in dict.fromkeys(task for _, _, task in values)
    ]
    tasks += [TaskDescription(task, "", error=why) for task, why in (broken or {}).items()]
    encoders = [
        EncoderResult(
            Member(name, f"print of {name}", f"output of {name}", WIDTH, {}, None, name),
            {method: build_method(method) for encoder, method, _ in values if encoder == name},
            (problems or {}).get(name, {}),
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
            units=len((units or {}).get((encoder, method, task), ())),
            values=list((units or {}).get((encoder, method, task), ())),
        )
        for (encoder, method, task), value in values.items()
    ]
    request = Request(Suite("suite", title, ()), (), **{"out": Path("nowhere"), **asked})
    return EvaluationResults(request, tasks, encoders, scores)


@pytest.fixture(scope="session")
def build():
    """Return `build_results`."""
    return build_results


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
