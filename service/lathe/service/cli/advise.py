"""`lathe advise`: in what form to store the vectors of a source."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from lathe.service.cli.fit import format_fit_result
from lathe.service.cli.options import (
    ENCODER,
    SOURCE,
    ProgressBar,
    build_request,
    flag,
    load_encoder,
    open_publish_context,
    take_fields,
)
from lathe.service.errors import BadValueError
from lathe.training.deciding.requests import AdviceRequest, PlaceName, find_missing_module
from lathe.training.errors import AdviceError
from lathe.transforms.files import replace_synced

if TYPE_CHECKING:
    from lathe.service.publishing.context import PublishContext
    from lathe.training.deciding.advise import Advice
    from lathe.training.deciding.places.decision import PlaceDecision
    from lathe.training.encoder.text_encoder import TextEncoder


@take_fields(
    AdviceRequest,
    source=SOURCE,
    encoder=ENCODER,
    place=None,
    fit="Fit the decision's chain, and register it under this name.",
    evidence="Also print all forms that were tried, the mean direction, and fewer dimensions.",
)
def advise(
    fields: dict[str, Any],
    place: Annotated[
        PlaceName | None, flag("--for", "Place that is to store the vectors. [asked for on a terminal; else lathe]")
    ] = None,
    report: Annotated[Path | None, flag("--report", "Write a page with the evidence and pictures: OUT.html")] = None,
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

    from lathe.training.deciding.advise import advise as run
    from lathe.training.deciding.advise_report import format_evidence, render_html, to_json
    from lathe.training.sources.source import open_source

    fields["evidence"] = fields["evidence"] or report is not None
    request = build_request(AdviceRequest, fields | {"place": place or _ask_for_place()})
    context = open_publish_context()  # fails before hours of encoding if the folder cannot be written
    _require_report_folder(report)
    source = request.source.location
    texts = open_source(source).kind() == "texts"
    if request.encoder is not None and not texts and request.fit is None:
        raise BadValueError(f"{source} holds vectors: --encoder is only for the chain that --fit makes")

    loaded = load_encoder(context.settings, request.encoder) if texts or request.encoder else None
    with ProgressBar() as progress:
        show = (lambda _decision: None) if as_json else partial(_print_decision, progress)
        advice = run(request, loaded, progress, show)
    if not as_json:
        typer.echo("\n" + format_evidence(advice))

    if report is not None:
        replace_synced(report, render_html(advice).encode())
    outcome: dict[str, Any] = {"fit": None}
    try:
        if request.fit is not None:
            outcome = _fit_decided(advice, request.fit, request, loaded, context)
            if not as_json:
                typer.echo("\n" + (outcome.get("fit_error") or format_fit_result(outcome["fit"])))
    finally:  # the measurements are printed even if the fit fails
        if as_json:
            typer.echo(orjson.dumps(to_json(advice) | outcome, option=orjson.OPT_INDENT_2))


def _ask_for_place() -> PlaceName:
    """Ask the user on the terminal where the vectors will be stored. Return `lathe` without a terminal."""
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
    progress.clear()
    typer.echo(decision.sentence)
    if decision.commands:
        typer.echo("\n".join(["", *decision.commands]))


def _require_report_folder(report: Path | None) -> None:
    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise BadValueError(f"--report is {report}; it must be a file in an existing folder, such as advice.html")


def _fit_decided(
    advice: "Advice", name: str, request: AdviceRequest, encoder: "TextEncoder | None", context: "PublishContext"
) -> dict[str, Any]:
    """Fit the chain of the decision on the whole source and register it.

    Returns `{"fit": result}`, or `{"fit": None, "fit_error": message}` if the decision takes none.
    """
    from lathe.service.publishing.fits import run_fit
    from lathe.training.deciding.advise import build_recommended_fit

    try:
        with ProgressBar() as progress:
            fit = build_recommended_fit(advice, name, request)
            return {"fit": run_fit(fit, context, progress, encoder=encoder)}
    except AdviceError as error:
        return {"fit": None, "fit_error": str(error)}
