"""`lathe train synthesize`: training pairs from questions with answers, made by a language model."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from service.cli.options import ProgressBar, flag
from service.errors import BadValueError
from training.errors import JobError


def synthesize(
    config: Annotated[Path | None, flag("--config", "The job: a YAML file; see docs/synthesis.md.")] = None,
    out: Annotated[
        Path | None,
        flag("--out", "The folder for everything; a stopped run goes on from it. [default: JOB-synthesize, here]"),
    ] = None,
    yes: Annotated[bool, flag("--yes", "Start without asking, whatever the estimate says.")] = False,
    estimate: Annotated[bool, flag("--estimate", "Say what it would take, ask nothing of the endpoint.")] = False,
    write_templates: Annotated[
        Path | None, flag("--write-templates", "Copy the prompts into this folder to be edited, and end.")
    ] = None,
) -> None:
    """Make training pairs from questions with answers, through any endpoint that speaks OpenAI's chat protocol."""
    if write_templates is not None:
        from training.synthesis.templates import write_templates as copy

        typer.echo("\n".join(str(path) for path in copy(write_templates)))
        return
    if config is None:
        raise BadValueError("--config is missing: the job's YAML file, see docs/synthesis.md")
    make_pairs(config, out or Path(f"{config.stem}-synthesize"), yes, estimate)


def make_pairs(config: Path, out: Path, yes: bool, only_estimate: bool) -> None:
    """Read a job, say what it takes, do it, say what came of it."""
    from training.finetuning.job import read_settings
    from training.reporting.tables import Table
    from training.synthesis.endpoint import open_endpoint
    from training.synthesis.job import SynthesisJob
    from training.synthesis.report import PAIRS, REJECTED, REPORT, as_json, rows, sentences
    from training.synthesis.run import estimate_run, prepare, run

    prepared = prepare(read_settings(config, SynthesisJob))
    endpoint = None if only_estimate else open_endpoint(prepared.job.endpoint)
    ahead = estimate_run(prepared, out)
    typer.echo(Table.from_rows(ahead.rows()).to_text(), err=not only_estimate)
    typer.echo("\n".join(ahead.sentences()), err=not only_estimate)
    if endpoint is None:
        return
    if ahead.calls and not yes:
        agree(f"Ask {endpoint.host} for up to {ahead.calls:,} answers?")
    with ProgressBar() as progress:
        outcome = run(prepared, endpoint, out, progress)
    found = as_json(outcome)
    typer.echo(Table.from_rows(rows(found)).to_text())
    typer.echo("\n" + "\n".join(sentences(found)))
    typer.echo(f"{found['pairs']:,} pairs are in {out / PAIRS}, what was left out in {out / REJECTED}")
    typer.echo(f"The figures are in {out / REPORT}", err=True)


def agree(question: str) -> None:
    """Go on only if the user says so.

    Raises:
        JobError: where there is nobody to ask.
    """
    if not sys.stdin.isatty():
        raise JobError("nobody is there to agree to that; say --yes to start, or --estimate to see what it takes")
    typer.confirm(question, abort=True, err=True)
