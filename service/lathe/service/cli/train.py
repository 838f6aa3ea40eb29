"""`lathe train`: training of encoders on anchor–positive pairs."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lathe.service.cli.options import (
    ProgressBar,
    build_request,
    find_encoder,
    flag,
    load_state,
    open_publish_context,
    take_fields,
)
from lathe.service.errors import BadValueError
from lathe.training.errors import JobError
from lathe.training.finetuning.regularizers.registry import METHODS
from lathe.training.finetuning.requests import NewTraining
from lathe.training.reporting.text import align_columns

app = typer.Typer(help="Train encoders on pairs by REZE or other methods.", no_args_is_help=True)

ConfigOption = Annotated[Path, flag("--config", "YAML file of the job; see docs/training.md.")]
OutOption = Annotated[
    Path | None,
    flag("--out", "Folder for all results, from which a stopped run continues. [default: JOB-METHOD]"),
]
NameOption = Annotated[
    str | None, flag("--name", "Publish the result as the next version of this encoder, with a certificate.")
]


def _add_training_command(method: str) -> None:
    @app.command(method, help=METHODS[method].help)
    @take_fields(
        NewTraining,
        name=None,
        method=None,
        job=None,
        gates=flag(
            "--gate", "MEASURE=VALUE the certificate must reach, such as out_of_domain.pydoc.ndcg_at_10.gain=0."
        ),
    )
    def train(config: ConfigOption, out: OutOption = None, name: NameOption = None, *, fields: dict[str, Any]) -> None:
        """Train an encoder by the method.

        The help text of the command is the method's.
        """
        if name is not None:
            _train_version(config, out, fields | {"name": name, "method": method})
        elif fields:
            raise BadValueError("--gate and --promote are for versions: name the encoder with --name")
        else:
            _train(method, config, out)


for name in reversed(METHODS):
    _add_training_command(name)


@app.command()
def synthesize(
    config: Annotated[Path | None, flag("--config", "YAML file of the job; see docs/synthesis.md.")] = None,
    out: Annotated[
        Path | None,
        flag("--out", "Folder for all results, from which a stopped run continues. [default: JOB-synthesize]"),
    ] = None,
    yes: Annotated[bool, flag("--yes", "Start without asking for consent.")] = False,
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
    _synthesize_pairs(config, out or Path(f"{config.stem}-synthesize"), yes)


def _synthesize_pairs(config: Path, out: Path, yes: bool) -> None:
    from lathe.training.finetuning.job import read_settings
    from lathe.training.reporting.tables import Table
    from lathe.training.synthesis.chat import read_endpoint
    from lathe.training.synthesis.job import SynthesisJob
    from lathe.training.synthesis.report import PAIRS, REJECTED, REPORT, build_report, build_stage_rows, summarize_run
    from lathe.training.synthesis.run import prepare_job, run_synthesis

    prepared = prepare_job(read_settings(config, SynthesisJob))
    endpoint = read_endpoint(prepared.job.endpoint)
    if not yes:
        _require_consent(f"Send requests about {len(prepared.seeds):,} seeds to {endpoint.host}?")
    with ProgressBar() as progress:
        outcome = run_synthesis(prepared, endpoint, out, progress)
    summary = build_report(outcome)
    typer.echo(Table.from_rows(build_stage_rows(summary)).to_text())
    typer.echo("\n" + "\n".join(summarize_run(summary)))
    typer.echo(f"{summary['pairs']:,} pairs are in {out / PAIRS}, what was left out in {out / REJECTED}")
    typer.echo(f"The figures are in {out / REPORT}", err=True)


def _require_consent(question: str) -> None:
    """Ask a question on the terminal, and end the program if the answer is no. Raise `JobError` without a terminal."""
    if not sys.stdin.isatty():
        raise JobError("consent is needed and stdin is not a terminal: use --yes to start")
    typer.confirm(question, abort=True, err=True)


def _train(method: str, config: Path, out: Path | None) -> None:
    _require_training_extra()
    import torch

    from lathe.training.finetuning.job import TrainingJob, read_settings
    from lathe.training.finetuning.run import get_process_rank, run_training

    settings, _ = load_state()
    job = read_settings(config, TrainingJob)
    # torchrun starts LOCAL_WORLD_SIZE processes on this machine, which share its cores.
    torch.set_num_threads(max(1, settings.threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
    spec = find_encoder(settings, job.encoder)
    with ProgressBar() as progress:
        folder = out or Path(f"{config.stem}-{method}")
        mining_encoder = find_encoder(settings, job.negatives.model if job.negatives else None)
        outcome = run_training(method, job, spec, settings.device, folder, progress, mining_encoder)
    # Under torchrun each process gets here, and only the first one prints.
    if get_process_rank() > 0:
        return
    mixture = outcome.mixture
    typer.echo(mixture.build_source_table().to_text())
    typer.echo(f"\n{len(mixture):,} pairs of {len(mixture.names)} sources are trained on.")
    typer.echo("\n".join(outcome.regularizer.summarize(mixture)))
    for warning in outcome.warnings:
        typer.echo(f"Note: {warning}")
    trained = outcome.summary
    best = f", step {trained['kept']:,} is kept" if trained["best"] is not None else ""
    typer.echo(
        f"Trained {trained['steps']:,} steps in {trained['seconds']:.0f} s{best}; the model is in {outcome.model}"
    )
    typer.echo(f"Serve it with: lathe encoders add NAME --model {outcome.model}", err=True)


def _train_version(config: Path, out: Path | None, fields: dict[str, Any]) -> None:
    if out is not None:
        raise BadValueError("--out and --name exclude each other: a version is stored in the state folder")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise BadValueError("torchrun trains into a folder: use --out, and add that with lathe encoders add")
    _require_training_extra()
    import torch

    from lathe.service.publishing.training import require_free_name, train_encoder
    from lathe.training.finetuning.job import TrainingJob, read_settings

    context = open_publish_context(encoders=None)
    settings = context.settings
    job = read_settings(config, TrainingJob)
    torch.set_num_threads(settings.threads)
    request = build_request(NewTraining, fields | {"job": {}})
    require_free_name(request.name, settings)
    request = request.model_copy(update={"job": job.model_dump(mode="json", exclude_unset=True)})
    base = find_encoder(settings, job.encoder)
    auxiliary = find_encoder(settings, job.negatives.model if job.negatives else None)
    with ProgressBar() as progress:
        result = train_encoder(request, context, progress, base=base, auxiliary=auxiliary)
    typer.echo("\n".join(_format_training_result(result)))


def _format_training_result(result: dict[str, Any]) -> list[str]:
    certificate = result["certificate"]
    rows = [["texts", "queries", "nDCG@10 before", "after", "gain"]]
    for group in ("relevance", "out_of_domain"):
        for name, measures in certificate[group].items():
            ndcg = measures["ndcg_at_10"]
            numbers = [f"{ndcg['before']:.4f}", f"{ndcg['after']:.4f}", f"{ndcg['gain']:+.4f}"]
            rows.append([name, str(measures["queries"]), *numbers])
    for name, task in certificate.get("tasks", {}).items():
        numbers = [f"{task['before']:.4f}", f"{task['after']:.4f}", f"{task['gain']:+.4f}"]
        rows.append([f"{name} ({task['metric']})", "", *numbers])

    lines = [align_columns(rows), *(f"Note: {warning}" for warning in certificate["warnings"])]
    if result["failed_gates"]:
        lines.append(f"Failed gates: {', '.join(result['failed_gates'])}")
    state = "live" if result["promoted"] else f"stored; to make it live: lathe encoders promote {result['encoder']}"
    return [*lines, f"{result['encoder']} is {state}"]


def _require_training_extra() -> None:
    """Stop tokenizers from starting threads, and raise `JobError` if the packages for training are not installed."""
    from importlib.util import find_spec

    if find_spec("accelerate") is None or find_spec("datasets") is None:
        raise JobError("training needs accelerate and datasets: pip install 'lathe-training[finetuning]'")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
