"""`lathe evaluate`: scores of encoders and chains on labelled data."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lathe.service.cli.options import ProgressBar, find_encoder, flag, load_state, open_chains
from lathe.service.errors import BadValueError
from lathe.training.encoder.precision import Dtype
from lathe.training.errors import EvaluationError

if TYPE_CHECKING:
    from lathe.service.chains.loaded_chain import LoadedChain
    from lathe.service.settings import Settings
    from lathe.training.evaluation.encoders import RequestedEncoder
    from lathe.training.evaluation.methods import Method
    from lathe.training.evaluation.run import Request, Results
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
    out: Annotated[
        Path, flag("--out", "Folder for vectors, scores and the report; if stopped, the same command continues.")
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
        flag("--audit", "Audit the encoders' vectors: their norms, and their mean on --corpus."),
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
        flag("--mean-sentences", "N,…: compare R1 and R2 with means of only N sentences of --corpus."),
    ] = None,
    corpus: Annotated[
        str, flag("--corpus", "Source of sentences to fit on; those of 64 to 512 characters are used.")
    ] = "pydoc:",
    limit: Annotated[int | None, flag("--limit", "Maximum rows of a data set, the same each time.", min=2)] = None,
    processes: Annotated[
        int | None,
        flag("--processes", "Processes that score, of one thread each. [default: one per core, at most 8]", min=1),
    ] = None,
    dtype: Annotated[Dtype, flag("--dtype", "Dtype of the encoders.")] = "float32",
    against: Annotated[
        str | None,
        flag(
            "--against",
            "SUITE: evaluate the encoders on this suite too, and test whether the two are different domains: "
            "domains.html and domains.json.",
        ),
    ] = None,
) -> None:
    """Score encoders and chains on labelled data, by mteb's own evaluators.

    The encoders' vectors are stored in OUT, and every method is scored from them. OUT also gets evaluation.json with
    all results, scores.csv and report.html. With --against, OUT/suite and OUT/against get them.
    """
    settings, _ = load_state()
    require_evaluation_extra()
    import torch

    from lathe.training.evaluation.methods import parse_size
    from lathe.training.evaluation.run import Request
    from lathe.training.evaluation.suites import open_suite
    from lathe.training.research.mean_bias_audit.probe import audit_group

    torch.set_num_threads(settings.threads)
    opened = open_suite(suite)
    counts = _split_commas(mean_sentences)
    if not all(count.isdecimal() and int(count) >= 2 for count in counts):
        raise BadValueError(f"--mean-sentences takes whole numbers from 2, got {mean_sentences!r}")
    request = Request(
        suite=opened,
        encoders=_list_encoders(settings, encoder, opened, dtype),
        out=out,
        corpus=corpus,
        chains=load_chain_methods(_split_commas(chain)),
        ladder=ladder or bool(counts),
        inspect=audit_group if audit else None,
        sizes=[parse_size(written) for written in _split_commas(sweep_dimensions)],
        sentences=[int(count) for count in counts],
        limit=limit,
        processes=processes or min(os.cpu_count() or 1, settings.threads, MAX_PROCESSES),
        device=settings.device,
        store=settings.upstream_store,
    )
    if against is None:
        _evaluate_suite(request)
    elif chain or ladder or sweep_dimensions or counts:
        raise BadValueError("--against compares encoders by their raw vectors; leave chains and other methods out")
    else:
        _compare_suites(request, open_suite(against))


def _evaluate_suite(request: "Request") -> None:
    """Evaluate on one suite, write the report and print it.

    Raises:
        EvaluationError: if nothing could be scored.
    """
    from lathe.training.evaluation.report import format_report, write_report
    from lathe.training.evaluation.run import evaluate as run
    from lathe.training.research.mean_bias_audit.report import report_audit

    with ProgressBar() as progress:
        results = run(request, progress)
        progress(1.0, "writing the report")
        supplements = [report_audit(results)]
        findings, files = write_report(results, supplements)
    _print_outcome(format_report(results, findings, supplements), files, [results])


def _compare_suites(request: "Request", against: "Suite") -> None:
    """Evaluate on two suites, each into its own folder, then write and print their comparison.

    Raises:
        EvaluationError: if the suites are the same, or nothing could be scored.
    """
    require_evaluation_extra("statsmodels")
    from lathe.training.evaluation.report import write_report
    from lathe.training.evaluation.run import evaluate as run
    from lathe.training.research.domains import compare, format_terminal, require_different, write_comparison
    from lathe.training.research.mean_bias_audit.report import report_audit
    from lathe.transforms.progress import part_of

    require_different(request.suite, against)
    with ProgressBar() as progress:
        first = run(replace(request, out=request.out / "suite"), part_of(progress, 0.0, 0.4))
        second = run(replace(request, suite=against, out=request.out / "against"), part_of(progress, 0.4, 0.8))
        comparison = compare(first, second, part_of(progress, 0.8, 1.0))
        progress(1.0, "writing the reports")
        files = [file for results in (first, second) for file in write_report(results, [report_audit(results)])[1]]
        files += write_comparison(comparison, request.out)
    _print_outcome(format_terminal(comparison), files, [first, second])


def _print_outcome(text: str, files: Sequence[Path], evaluated: "Sequence[Results]") -> None:
    """Print the report to stdout, and the paths of its files to stderr.

    Raises:
        EvaluationError: if nothing could be scored.
    """
    typer.echo(text)
    typer.echo("\n" + "\n".join(str(path) for path in files), err=True)
    if all(score.error for results in evaluated for score in results.scores):
        raise EvaluationError("nothing could be scored; see the problems above")


def require_evaluation_extra(module: str = "mteb") -> None:
    """Raise `EvaluationError` if a module of the extra `evaluation` is not installed."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise EvaluationError(f"evaluating needs {module}: pip install 'lathe-training[evaluation]'")


def _split_commas(value: str | None) -> list[str]:
    """Return the non-empty parts of a comma-separated option; none for None."""
    return [part.strip() for part in (value or "").split(",") if part.strip()]


def _list_encoders(settings: "Settings", option: str | None, suite: "Suite", dtype: Dtype) -> "list[RequestedEncoder]":
    """Return the encoders that the option names, else those of the suite, else the default encoder."""
    from lathe.training.evaluation.encoders import BAG_OF_WORDS, RequestedEncoder

    def build_request(name: str | None) -> RequestedEncoder:
        """Return the encoder for `NAME[:VARIANT]`; None is the default encoder."""
        if name == BAG_OF_WORDS:
            return RequestedEncoder(None)
        base, _, variant = (name or "").partition(":")
        return RequestedEncoder(replace(find_encoder(settings, base or None), dtype=dtype), variant)

    names = _split_commas(option)
    if not names and suite.encoders:
        return [
            replace(build_request(one.model), family=one.family, published_mean_norm=one.published_mean_norm)
            for one in suite.encoders
        ]
    return [build_request(name) for name in dict.fromkeys(names)] or [build_request(None)]


def load_chain_methods(names: Sequence[str]) -> "list[Method]":
    """Load chains from the registry as methods to evaluate."""
    from lathe.training.evaluation.methods import Method, hash_chain

    if not names:
        return []
    registry, _ = open_chains(write=False)
    return [
        Method(
            one.ref,
            "chain",
            one.ref,
            size=_get_reduced_dimensions(one),
            chain=one.chain,
            key=hash_chain(one.chain),
            only=one.encoder_fingerprint,
        )
        for one in map(registry.load, dict.fromkeys(names))
    ]


def _get_reduced_dimensions(loaded: "LoadedChain") -> int | None:
    """Return the dimensions that a chain reduces vectors to; None if it does not reduce them."""
    before, after = loaded.chain.input_dimensions, loaded.chain.output_dimensions
    return after if before and after and after < before else None
