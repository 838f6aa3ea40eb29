"""`lathe train synthesize`: training pairs that a language model makes from questions and answers."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from lathe.service.cli.options import ProgressBar, flag
from lathe.service.errors import BadValueError
from lathe.training.errors import JobError


def synthesize(
    config: Annotated[Path | None, flag("--config", "YAML file of the job; see docs/synthesis.md.")] = None,
    out: Annotated[
        Path | None,
        flag("--out", "Folder for all results, from which a stopped run continues. [default: JOB-synthesize]"),
    ] = None,
    yes: Annotated[bool, flag("--yes", "Start without asking for consent.")] = False,
    estimate: Annotated[bool, flag("--estimate", "Only print the estimated requests and cost.")] = False,
    write_templates: Annotated[
        Path | None, flag("--write-templates", "Only copy the prompts into this folder for editing.")
    ] = None,
) -> None:
    """Make training pairs from questions with answers, by any endpoint with OpenAI's chat API."""
    if write_templates is not None:
        from lathe.training.synthesis.templates import write_templates as copy

        typer.echo("\n".join(str(path) for path in copy(write_templates)))
        return
    if config is None:
        raise BadValueError("--config is missing; it must name the YAML file of the job, see docs/synthesis.md")
    _synthesize_pairs(config, out or Path(f"{config.stem}-synthesize"), yes, estimate)


def _synthesize_pairs(config: Path, out: Path, yes: bool, only_estimate: bool) -> None:
    """Read a job and print its estimate; then ask for consent unless `yes`, run it, and print a summary.

    With `only_estimate`, end after the estimate.
    """
    from lathe.training.finetuning.job import read_settings
    from lathe.training.reporting.tables import Table
    from lathe.training.synthesis.chat import open_endpoint
    from lathe.training.synthesis.job import SynthesisJob
    from lathe.training.synthesis.report import PAIRS, REJECTED, REPORT, as_json, build_stage_rows, summarize_run
    from lathe.training.synthesis.run import estimate_run, prepare, run

    prepared = prepare(read_settings(config, SynthesisJob))
    endpoint = None if only_estimate else open_endpoint(prepared.job.endpoint)
    estimated = estimate_run(prepared, out)
    typer.echo(Table.from_rows(estimated.rows()).to_text(), err=not only_estimate)
    typer.echo("\n".join(estimated.sentences()), err=not only_estimate)
    if endpoint is None:
        return
    if estimated.calls and not yes:
        _require_consent(f"Send up to {estimated.calls:,} requests to {endpoint.host}?")
    with ProgressBar() as progress:
        outcome = run(prepared, endpoint, out, progress)
    summary = as_json(outcome)
    typer.echo(Table.from_rows(build_stage_rows(summary)).to_text())
    typer.echo("\n" + "\n".join(summarize_run(summary)))
    typer.echo(f"{summary['pairs']:,} pairs are in {out / PAIRS}, what was left out in {out / REJECTED}")
    typer.echo(f"The figures are in {out / REPORT}", err=True)


def _require_consent(question: str) -> None:
    """Ask the user, and abort the program unless the answer is yes.

    Raises:
        JobError: if stdin is not a terminal.
    """
    if not sys.stdin.isatty():
        raise JobError("consent is needed and stdin is no terminal: use --yes to start, or --estimate for the cost")
    typer.confirm(question, abort=True, err=True)
