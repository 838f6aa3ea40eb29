"""`lathe advise`: in what form to store the vectors of a source."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from lathe.service.cli.fit import format_fit_result
from lathe.service.cli.options import (
    SOURCE,
    ProgressBar,
    flag,
    format_command_line,
    load_encoder,
    load_state,
    open_chains,
)
from lathe.service.errors import BadValueError
from lathe.training.advice.request import (
    DEFAULT_RECALL,
    DEFAULT_ROWS,
    MAX_ROWS,
    AdviceRequest,
    Metric,
    PlaceName,
    find_missing_module,
)
from lathe.training.errors import AdviceError
from lathe.training.fitting.requests import MIN_DISTINCT_ROWS
from lathe.transforms.files import replace_synced

if TYPE_CHECKING:
    from lathe.service.settings import Settings
    from lathe.training.advice.advise import Advice
    from lathe.training.advice.places.decision import PlaceDecision
    from lathe.training.encoder.text_encoder import TextEncoder


def advise(
    source: Annotated[str, flag("--source", SOURCE)],
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    place: Annotated[
        PlaceName | None, flag("--for", "Place that is to store the vectors. [asked for on a terminal; else lathe]")
    ] = None,
    rows: Annotated[
        int | None, flag("--rows", "Number of rows that it will have. [default: those of the source]", min=1)
    ] = None,
    metric: Annotated[Metric, flag("--metric", "How it compares vectors.")] = "cosine",
    recall: Annotated[
        float,
        flag("--recall", "Share of the ten nearest rows that a search in it must find.", min=0.01, max=0.9999),
    ] = DEFAULT_RECALL,
    fit: Annotated[str | None, flag("--fit", "Fit the decision's chain, and register it under this name.")] = None,
    evidence: Annotated[
        bool,
        flag("--evidence", "Also print all forms that were tried, the mean direction, and fewer dimensions."),
    ] = False,
    report: Annotated[Path | None, flag("--report", "Write a page with the evidence and pictures: OUT.html")] = None,
    sample_rows: Annotated[
        int, flag("--sample-rows", "Maximum distinct rows to measure.", min=MIN_DISTINCT_ROWS, max=MAX_ROWS)
    ] = DEFAULT_ROWS,
    seed: Annotated[int, flag("--seed", "Seed of the sample of rows.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Decide in what form to store the vectors of a source, measured on held-out rows.

    The decision is for the place that --for names: what to store there, its bytes among --rows rows, the recall to
    expect, and the commands that create, fill and search it. "Leave the vectors as they are" is a possible decision.

    With --evidence, it also prints all forms that were tried, whether the vectors share a mean direction and removing
    it helps, what fewer dimensions keep, whether the encoder was trained to be cut, and what the sample is too small to
    tell. If it was stopped, the same command continues: encoded texts are not encoded again.
    """
    if module := find_missing_module():
        raise AdviceError(f"advice needs {module}: pip install 'lathe-training[evaluation]'")
    import orjson

    from lathe.service.chains.names import require_name
    from lathe.training.advice.advise import advise as run
    from lathe.training.advice.report import format_evidence, render_html, to_json
    from lathe.training.sources.source import open_source

    settings, _ = load_state()
    if fit is not None:
        require_name(fit)
    place = place or _ask_for_place()
    open_chains(write=True)  # fails before hours of encoding if the folder cannot be written
    _require_report_folder(report)
    texts = open_source(source).kind() == "texts"
    if encoder is not None and not texts and fit is None:
        raise BadValueError(f"{source} holds vectors: --encoder is only for the chain that --fit makes")

    loaded = load_encoder(settings, encoder) if texts or encoder else None
    advice_request = AdviceRequest(
        source=source,
        sample_rows=sample_rows,
        seed=seed,
        place=place,
        rows=rows,
        metric=metric,
        recall=recall,
        encoder=encoder,
        chain=fit,
        evidence=evidence or report is not None,
    )
    with ProgressBar() as progress:
        show = (lambda _decision: None) if as_json else partial(_print_decision, progress)
        advice = run(advice_request, loaded, progress, show)
    if not as_json:
        typer.echo("\n" + format_evidence(advice))

    if report is not None:
        replace_synced(report, render_html(advice).encode())
    outcome: dict[str, Any] = {"fit": None}
    try:
        if fit is not None:
            outcome = _fit_decided(advice, fit, advice_request, loaded, settings)
            if not as_json:
                typer.echo("\n" + (outcome.get("fit_error") or format_fit_result(outcome["fit"])))
    finally:  # the measurements are printed even if the fit fails
        if as_json:
            typer.echo(orjson.dumps(to_json(advice) | outcome, option=orjson.OPT_INDENT_2))


def _ask_for_place() -> PlaceName:
    """Ask the user on the terminal where the vectors will be stored, and return it. `lathe` without a terminal."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return "lathe"
    names = get_args(PlaceName)
    question = f"Where will the vectors be stored? ({', '.join(names)})"
    while (answer := typer.prompt(question, default="lathe", err=True)) not in names:
        typer.echo(f"{answer!r} is none of these", err=True)
    place: PlaceName = answer
    return place


def _print_decision(progress: ProgressBar, decision: "PlaceDecision") -> None:
    """Print the advice's decision at once, above the progress bar: the evidence that follows takes minutes."""
    from lathe.training.advice.report import format_decision

    progress.clear()
    typer.echo(format_decision(decision))


def _require_report_folder(report: Path | None) -> None:
    """Raise `BadValueError` unless a report can be written to this file."""
    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise BadValueError(f"--report is {report}; it must be a file in an existing folder, such as advice.html")


def _fit_decided(
    advice: "Advice", name: str, advice_request: AdviceRequest, encoder: "TextEncoder | None", settings: "Settings"
) -> dict[str, Any]:
    """Fit the chain of the decision on the whole source and register it. Return the result as a dict.

    Returns:
        `{"fit": result}`, or `{"fit": None, "fit_error": message}` if the decision takes none.
    """
    from lathe.service.chains.fits import FitSetting, run_fit
    from lathe.service.home import Home
    from lathe.training.advice.advise import build_recommended_fit

    try:
        with ProgressBar() as progress:
            context = FitSetting(open_chains(write=True), Home(settings.home).vectors, format_command_line(), encoder)
            return {"fit": run_fit(build_recommended_fit(advice, name, advice_request), context, progress)}
    except AdviceError as error:
        return {"fit": None, "fit_error": str(error)}
