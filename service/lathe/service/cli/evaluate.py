"""`lathe evaluate`: scores of encoders and chains on labelled data."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.options import ProgressBar, find_encoder, flag, load_state, open_chains
from lathe.training.encoder.devices import Dtype
from lathe.training.errors import EvaluationError

if TYPE_CHECKING:
    from lathe.service.settings import Settings
    from lathe.training.evaluation.encoders import RequestedEncoder
    from lathe.training.evaluation.methods import EvaluatedMethod
    from lathe.training.evaluation.suites import Suite

MAX_PROCESSES = 8
"""Maximum default number of processes; each holds mteb and its libraries, about a gigabyte."""


def evaluate(
    suite: Annotated[
        str,
        flag(
            "--suite",
            "A folder of data sets, a YAML file, mteb:TASK,BENCHMARK,… from the hub, or finmteb, mean-bias-panel.",
        ),
    ],
    out: Annotated[Path, flag("--out", "Folder for scores and the report; if stopped, the same command continues.")],
    encoder: Annotated[
        str | None,
        flag(
            "--encoder",
            "E,…: configured encoders, folders or hub ids; each is compared with the first. "
            "[default: the suite's encoders, else the default encoder]",
        ),
    ] = None,
    chain: Annotated[
        str | None, flag("--chain", "NAME,NAME@VERSION,…: chains to compare with raw vectors and with the first chain.")
    ] = None,
    limit: Annotated[int | None, flag("--limit", "Maximum rows of a data set, the same each time.", min=2)] = None,
    processes: Annotated[
        int | None,
        flag("--processes", "Processes that score, of one thread each. [default: one per core, at most 8]", min=1),
    ] = None,
    dtype: Annotated[Dtype, flag("--dtype", "Dtype of the encoders.")] = "float32",
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Compare encoders and chains on labelled data, scored by mteb's own evaluators.

    The last line printed says which one to take, by how many points it is better, and how sure that is. OUT gets
    evaluation.json with all results, scores.csv and report.html.
    """
    _require_evaluation_extra()
    import orjson
    import torch

    from lathe.training.evaluation.report import build_json, format_report, write_report
    from lathe.training.evaluation.run import Request
    from lathe.training.evaluation.run import evaluate as run
    from lathe.training.evaluation.suites import open_suite

    settings, _ = load_state()
    torch.set_num_threads(settings.threads)
    with ProgressBar() as progress:
        progress(0.0, f"opening the suite {suite}")  # names of mteb's tasks take seconds
        opened = open_suite(suite)
        request = Request(
            suite=opened,
            encoders=_list_encoders(settings, encoder, opened, dtype),
            out=out,
            chains=load_chain_methods(_split_commas(chain)),
            limit=limit,
            processes=processes or min(os.cpu_count() or 1, settings.threads, MAX_PROCESSES),
            device=settings.device,
            stores=settings.vector_stores,
        )
        results = run(request, progress)
        progress(1.0, "writing the report")
        decision, files = write_report(results)

    if as_json:
        typer.echo(orjson.dumps(build_json(results, decision), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY))
    else:
        typer.echo(format_report(results, decision))
    typer.echo("\n" + "\n".join(str(path) for path in files), err=True)
    if all(score.error for score in results.scores):
        raise EvaluationError("nothing could be scored; see the problems above")


def _require_evaluation_extra() -> None:
    from importlib.util import find_spec

    if find_spec("mteb") is None:
        raise EvaluationError("evaluating needs mteb: pip install 'lathe-training[evaluation]'")


def _split_commas(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _list_encoders(settings: "Settings", option: str | None, suite: "Suite", dtype: Dtype) -> "list[RequestedEncoder]":
    from lathe.training.evaluation.encoders import RequestedEncoder

    def build_request(name: str | None) -> RequestedEncoder:
        return RequestedEncoder(replace(find_encoder(settings, name), dtype=dtype))

    names = _split_commas(option)
    if not names and suite.encoders:
        return [replace(listed, spec=build_request(listed.spec.model).spec) for listed in suite.encoders]
    requests = {name: build_request(name) for name in names}
    configured = {name for spec in settings.specs for name in (spec.name, spec.model)}
    for folder, short in _name_folders([name for name in requests if name not in configured]).items():
        requests[folder] = replace(requests[folder], spec=replace(requests[folder].spec, name=short))
    return list(requests.values()) or [build_request(None)]


def _name_folders(folders: Sequence[str]) -> dict[str, str]:
    """Return a short, distinct name for each model's folder or hub id, as `{folder: name}`.

    The name is the last part of the path, or more parts where needed. A last part `model` is left out, because `lathe
    train` calls all its results so: `build/adapted/model` is called `adapted`.
    """
    parts = {folder: _split_path(folder) for folder in folders}
    names = {}
    for folder, path in parts.items():
        competing = [candidate for candidate in parts.values() if candidate != path]
        length = next(
            (n for n in range(1, len(path)) if all(candidate[-n:] != path[-n:] for candidate in competing)), len(path)
        )
        names[folder] = "/".join(path[-length:])
    return names


def _split_path(folder: str) -> list[str]:
    parts = [part for part in folder.split("/") if part]
    return parts[:-1] if len(parts) > 1 and parts[-1] == "model" else parts


def load_chain_methods(names: Sequence[str]) -> "list[EvaluatedMethod]":
    """Load the named chains of transforms from the registry, and return each as a method that `evaluate` can score."""
    from lathe.training.evaluation.methods import EvaluatedMethod, hash_chain

    if not names:
        return []
    registry = open_chains(write=False)
    return [
        EvaluatedMethod(loaded.ref, "chain", loaded.chain, hash_chain(loaded.chain), loaded.encoder_fingerprint)
        for loaded in map(registry.load, dict.fromkeys(names))
    ]
