"""`lathe train`: encoders trained on anchor–positive pairs."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import ProgressBar, find_encoder, flag, state
from service.cli.synthesize import synthesize
from training.errors import JobError
from training.finetuning.regularizers.registry import METHODS

if TYPE_CHECKING:
    from service.settings import Settings
    from training.encoder.spec import EncoderSpec
    from training.finetuning.job import Job

app = typer.Typer(help="Train encoders on pairs: REZE, its rivals, their comparison.", no_args_is_help=True)

ConfigOption = Annotated[Path, flag("--config", "The job: a YAML file; see docs/training.md.")]
OutOption = Annotated[
    Path | None,
    flag("--out", "The folder for everything; a stopped run goes on from it. [default: JOB-METHOD, in this folder]"),
]


def add_method(method: str) -> None:
    """Add the command that trains by a method of the registry."""

    @app.command(method, help=METHODS[method].help)
    def train(config: ConfigOption, out: OutOption = None) -> None:
        run_job(method, config, out)


for known in reversed(METHODS):
    add_method(known)


@app.command()
def experiment(
    config: ConfigOption,
    out: OutOption = None,
    processes: Annotated[
        int | None, flag("--processes", "Units at once, of one thread each. [default: one a core; 1 on a GPU]", min=1)
    ] = None,
) -> None:
    """Compare REZE with its rivals: methods by targets by sizes by seeds, written as tables, pictures and one page."""
    require_extra()
    from training.encoder.devices import best_device
    from training.finetuning.job import read_settings
    from training.research.reze_experiment.report import format_terminal, write_report
    from training.research.reze_experiment.run import run_experiment
    from training.research.reze_experiment.settings import ExperimentSettings

    settings, _ = state()
    wanted = read_settings(config, ExperimentSettings)
    at_once = processes or (settings.threads if (settings.device or best_device()) == "cpu" else 1)
    with ProgressBar() as progress:
        spec = find_encoder(settings, wanted.encoder)
        folder = out or default_folder(config, "experiment")
        found = run_experiment(wanted, spec, settings.device, folder, at_once, progress)
        progress(1.0, "writing the report")
        findings, files = write_report(found, folder)
    typer.echo(format_terminal(found, findings))
    typer.echo("\n" + "\n".join(str(path) for path in files), err=True)


@app.command()
def mine(config: ConfigOption, out: OutOption = None) -> None:
    """Mine the job's hard negatives and say what was found; a training into the same folder takes them from there."""
    require_extra()
    from training.finetuning.job import Job, read_settings
    from training.finetuning.mining_run import run_mining
    from training.finetuning.parts import build_example_table, build_mining_table, build_rejection_table

    settings, _ = state()
    job = read_settings(config, Job)
    folder = out or default_folder(config, "mine")
    with ProgressBar() as progress:
        found = run_mining(job, auxiliary_of(settings, job), settings.device, folder, progress)
    for build_table in (build_mining_table, build_rejection_table, build_example_table):
        typer.echo(build_table(found).to_text() + "\n")
    typer.echo(f"Pairs with their negatives, and the statistics, are in {folder / 'negatives'}", err=True)


app.command()(synthesize)


def default_folder(config: Path, method: str) -> Path:
    """Where the results of a job go that names no folder."""
    return Path(f"{config.stem}-{method}")


def run_job(method: str, config: Path, out: Path | None) -> None:
    """Read a job, do it, say what came of it."""
    require_extra()
    import torch

    from training.finetuning.job import Job, read_settings
    from training.finetuning.report import build_source_table, sentences
    from training.finetuning.run import get_process_rank, run_training

    settings, _ = state()
    job = read_settings(config, Job)
    torch.set_num_threads(max(1, settings.threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))  # torchrun's
    spec = find_encoder(settings, job.encoder)
    with ProgressBar() as progress:
        folder = out or default_folder(config, method)
        outcome = run_training(method, job, spec, settings.device, folder, progress, auxiliary_of(settings, job))
    if get_process_rank() > 0:
        return
    from training.finetuning.parts import build_mining_table
    from training.finetuning.post_training_evaluation import build_category_table

    typer.echo(build_source_table(outcome.mixture).to_text())
    if outcome.mined:
        typer.echo("\n" + build_mining_table(outcome.mined).to_text())
    typer.echo("\n" + "\n".join(sentences(outcome.mixture, outcome.regularizer)))
    for warning in outcome.warnings:
        typer.echo(f"Note: {warning}")
    trained = outcome.summary
    if outcome.compared:
        typer.echo("\n" + build_category_table(outcome.compared).to_text() + "\n")
    best = f", step {trained['kept']:,} is kept" if trained["best"] is not None else ""
    typer.echo(
        f"Trained {trained['steps']:,} steps in {trained['seconds']:.0f} s{best}; the model is in {outcome.model}"
    )
    typer.echo(f"Serve it with: lathe encoders add NAME --model {outcome.model}", err=True)


def auxiliary_of(settings: "Settings", job: "Job") -> "EncoderSpec":
    """The encoder that hard negatives are mined with."""
    return find_encoder(settings, job.negatives.model if job.negatives else None)


def require_extra() -> None:
    """Raise `JobError` unless the extra is installed; be silent about the network, which is not needed."""
    from importlib.util import find_spec

    if find_spec("accelerate") is None or find_spec("datasets") is None:
        raise JobError("training needs accelerate and datasets: pip install 'lathe[training]'")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
