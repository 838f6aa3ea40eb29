"""`lathe evaluate`."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import ProgressBar, find_encoder, flag, registry_with_places, state
from service.errors import BadValueError
from training.encoder.precision import Dtype
from training.errors import EvaluationError

if TYPE_CHECKING:
    from service.registry import LoadedChain
    from service.settings import Settings
    from training.evaluation.encoders import RequestedEncoder
    from training.evaluation.methods import Method
    from training.evaluation.run import Request, Results
    from training.evaluation.suites import Suite

PROCESSES_MOST = 8
"""Each holds mteb and its libraries: about a gigabyte."""


def evaluate(
    suite: Annotated[
        str,
        flag(
            "--suite",
            "A folder of data sets, a YAML file, mteb:TASK,BENCHMARK,… from the hub, or finmteb, mean-bias-panel.",
        ),
    ],
    out: Annotated[
        Path, flag("--out", "Folder for vectors, scores and the report; the same command goes on where it stopped.")
    ],
    encoder: Annotated[
        str | None,
        flag(
            "--encoder",
            "E,…: configured encoders, folders or hub ids; NAME:layers or NAME:layer3-cls for layers of one under "
            "another pooling; bag-of-words. [default: those of the suite, else the default encoder]",
        ),
    ] = None,
    chain: Annotated[str | None, flag("--chain", "NAME,NAME@VERSION,…: chains to compare with raw vectors.")] = None,
    ladder: Annotated[
        bool, flag("--ladder", "Compare the nine methods of the mean-bias paper, fitted on --corpus.")
    ] = False,
    audit: Annotated[
        bool,
        flag("--audit", "Look for what is odd about the encoders' vectors: norms, and their mean on --corpus."),
    ] = False,
    sweep_dimensions: Annotated[
        str | None,
        flag(
            "--sweep-dimensions",
            "SIZE,…: compare reducers at sizes such as 96 or 1/4, fitted on --corpus; nested chains are cut to them.",
        ),
    ] = None,
    mean_sentences: Annotated[
        str | None,
        flag("--mean-sentences", "N,…: compare R1 and R2 with means of only so many sentences of --corpus."),
    ] = None,
    corpus: Annotated[
        str, flag("--corpus", "Source of sentences to fit on; those of 64 to 512 characters are taken.")
    ] = "pydoc:",
    limit: Annotated[
        int | None, flag("--limit", "At most so many rows of a data set, the same each time.", min=2)
    ] = None,
    processes: Annotated[
        int | None, flag("--processes", "That score, of one thread each. [default: one a core, at most 8]", min=1)
    ] = None,
    dtype: Annotated[Dtype, flag("--dtype", "What the encoders run in.")] = "float32",
    against: Annotated[
        str | None,
        flag(
            "--against",
            "SUITE: evaluate the encoders on this one too, and tell whether the two are different domains: "
            "domains.html and domains.json.",
        ),
    ] = None,
) -> None:
    """Score encoders and chains on labelled data, by mteb's own evaluators.

    Raw encoder output is kept in OUT and every method is scored from it. OUT also gets evaluation.json with
    everything, scores.csv and report.html. With --against, OUT/suite and OUT/against do.
    """
    settings, _ = state()
    require_extra()
    import torch

    from training.evaluation.methods import parse_size
    from training.evaluation.run import Request
    from training.evaluation.suites import open_suite
    from training.research.mean_bias_audit.probe import audit_group

    torch.set_num_threads(settings.threads)
    opened = open_suite(suite)
    counts = listed(mean_sentences)
    if not all(count.isdecimal() and int(count) >= 2 for count in counts):
        raise BadValueError(f"--mean-sentences takes numbers of at least 2, got {mean_sentences!r}")
    request = Request(
        suite=opened,
        encoders=wanted_encoders(settings, encoder, opened, dtype),
        out=out,
        corpus=corpus,
        chains=fitted_chains(listed(chain)),
        ladder=ladder or bool(counts),
        inspect=audit_group if audit else None,
        sizes=[parse_size(written) for written in listed(sweep_dimensions)],
        sentences=[int(count) for count in counts],
        limit=limit,
        processes=processes or min(os.cpu_count() or 1, settings.threads, PROCESSES_MOST),
        device=settings.device,
    )
    if against is None:
        evaluate_one(request)
    elif chain or ladder or sweep_dimensions or counts:
        raise BadValueError("--against compares encoders by their raw vectors; leave chains and other methods out")
    else:
        evaluate_both(request, open_suite(against))


def evaluate_one(request: "Request") -> None:
    """Evaluate, write the report, print it.

    Raises:
        EvaluationError: if nothing could be scored.
    """
    from training.evaluation.report import format_report, write_report
    from training.evaluation.run import evaluate as run
    from training.research.mean_bias_audit.report import report_audit

    with ProgressBar() as progress:
        results = run(request, progress)
        progress(1.0, "writing the report")
        supplements = [report_audit(results)]
        findings, files = write_report(results, supplements)
    finish(format_report(results, findings, supplements), files, [results])


def evaluate_both(request: "Request", against: "Suite") -> None:
    """Evaluate on both suites, each in a folder of its own, then write and print how they compare.

    Raises:
        EvaluationError: if they are the same, or nothing could be scored.
    """
    require_extra("statsmodels")
    from training.evaluation.report import write_report
    from training.evaluation.run import evaluate as run
    from training.research.domains import compare, format_terminal, require_different, write_comparison
    from training.research.mean_bias_audit.report import report_audit
    from transforms.progress import part_of

    require_different(request.suite, against)
    with ProgressBar() as progress:
        first = run(replace(request, out=request.out / "suite"), part_of(progress, 0.0, 0.4))
        second = run(replace(request, suite=against, out=request.out / "against"), part_of(progress, 0.4, 0.8))
        comparison = compare(first, second, part_of(progress, 0.8, 1.0))
        progress(1.0, "writing the reports")
        files = [file for results in (first, second) for file in write_report(results, [report_audit(results)])[1]]
        files += write_comparison(comparison, request.out)
    finish(format_terminal(comparison), files, [first, second])


def finish(text: str, files: Sequence[Path], evaluated: "Sequence[Results]") -> None:
    """Print what was found and where it lies.

    Raises:
        EvaluationError: if nothing could be scored.
    """
    typer.echo(text)
    typer.echo("\n" + "\n".join(str(path) for path in files), err=True)
    if all(score.error for results in evaluated for score in results.scores):
        raise EvaluationError("nothing could be scored; see the problems above")


def require_extra(module: str = "mteb") -> None:
    """Raise `EvaluationError` unless a module of the extra is installed."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise EvaluationError(f"evaluating needs {module}: pip install 'lathe[evaluation]'")


def listed(written: str | None) -> list[str]:
    """The parts of a comma-separated option."""
    return [part.strip() for part in (written or "").split(",") if part.strip()]


def wanted_encoders(
    settings: "Settings", written: str | None, suite: "Suite", dtype: Dtype
) -> "list[RequestedEncoder]":
    """The encoders a user named; else those of the suite; else the default."""
    from training.evaluation.encoders import BAG_OF_WORDS, RequestedEncoder

    def spec(name: str | None) -> RequestedEncoder:
        if name == BAG_OF_WORDS:
            return RequestedEncoder(None)
        base, _, variant = (name or "").partition(":")
        return RequestedEncoder(replace(find_encoder(settings, base or None), dtype=dtype), variant)

    names = listed(written)
    if not names and suite.encoders:
        return [
            replace(spec(one.model), family=one.family, published_mean_norm=one.published_mean_norm)
            for one in suite.encoders
        ]
    return [spec(name) for name in dict.fromkeys(names)] or [spec(None)]


def fitted_chains(names: Sequence[str]) -> "list[Method]":
    """Chains of the registry as methods."""
    from training.evaluation.methods import Method, hash_chain

    if not names:
        return []
    registry, _ = registry_with_places(write=False)
    return [
        Method(
            one.ref,
            "chain",
            one.ref,
            size=reduced(one),
            chain=one.chain,
            key=hash_chain(one.chain),
            only=one.encoder_fingerprint,
        )
        for one in map(registry.load, dict.fromkeys(names))
    ]


def reduced(loaded: "LoadedChain") -> int | None:
    """The size a chain reduces to; None where it does not."""
    before, after = loaded.chain.input_dimensions, loaded.chain.output_dimensions
    return after if before and after and after < before else None
