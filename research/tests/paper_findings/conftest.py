"""Results of evaluations of fitted methods, built from given scores."""

from dataclasses import replace
from pathlib import Path

import pytest

from lathe.training.evaluation.methods import CONTROL_METHOD
from research.fitted_methods.evaluation import FittedRequest, FittedResult, FittedResults
from research.fitted_methods.methods import FittableMethod, build_reducer, label_method, list_debiasing_methods
from research.paper_findings.grid import Grid
from tests.training.evaluation.conftest import *  # noqa: F403 - pytest finds fixtures by the names of this module
from tests.training.evaluation.conftest import build_results as build_plain

KNOWN = {method.name: method for method in [label_method(CONTROL_METHOD), *list_debiasing_methods()]}


def build_method(name):
    """Build the method of a display name: a known one, `pca:4`, or a chain."""
    kind, _, size = name.partition(":")
    return KNOWN.get(name) or (
        build_reducer(name, kind, int(size)) if size else FittableMethod(name, "chain", label=name)
    )


def build_results(
    values, types=None, languages=None, families=None, norms=None, methods=(), intrinsic=None, broken=None, **asked
):
    """Build results as the tests of evaluation do, with methods by name or given.

    Families and norms are by encoder, intrinsic measures by (encoder, method). Other options go to the request.
    """
    title, problems = asked.pop("title", "A suite"), asked.pop("problems", None)
    plain = build_plain(values, types, languages, problems=problems, broken=broken, title=title)
    given = {method.name: method for method in methods}
    encoders = [
        FittedResult(
            replace(result.member, family=(families or {}).get(result.member.name, result.member.name)),
            {name: given.get(name) or build_method(name) for name in result.methods},
            result.problems,
            (norms or {}).get(result.member.name),
            {method: found for (encoder, method), found in (intrinsic or {}).items() if encoder == result.member.name},
        )
        for result in plain.encoders
    ]
    request = FittedRequest(plain.request.suite, (), **{"out": Path("nowhere"), **asked})
    return FittedResults(request, plain.tasks, encoders, plain.scores, corpus_rows=1000)


@pytest.fixture(scope="session")
def build():
    """Return `build_results`."""
    return build_results


@pytest.fixture(scope="session")
def grid_of():
    """Return a function that builds the grid of `build_results`."""
    return lambda *args, **options: Grid(build_results(*args, **options))
