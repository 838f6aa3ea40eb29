"""`lathe advise`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.evaluate import require_extra
from service.cli.fit import in_words as fit_in_words
from service.cli.options import SOURCE, ProgressBar, command_line, flag, load_encoder, registry_with_places, state
from service.errors import BadValueError
from training.advice.request import DEFAULT_KEEP, DEFAULT_ROWS, MAX_ROWS, AdviceRequest
from training.errors import AdviceError
from training.fitting.fit_request import MIN_DISTINCT_ROWS
from transforms.files import replace_synced

if TYPE_CHECKING:
    from service.settings import Settings
    from training.advice.advise import Advice
    from training.encoder.encoder import Encoder


def advise(
    source: Annotated[str, flag("--source", SOURCE)],
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    report: Annotated[Path | None, flag("--report", "Write a page with tables and pictures: OUT.html")] = None,
    fit: Annotated[str | None, flag("--fit", "Fit what is recommended, and register it under this name.")] = None,
    keep: Annotated[
        float,
        flag(
            "--keep",
            "Share that a size must keep of the ten nearest neighbours, rescored, and of the halves' own rank.",
            min=0,
            max=1,
        ),
    ] = DEFAULT_KEEP,
    rows: Annotated[int, flag("--rows", "Distinct rows, at most.", min=MIN_DISTINCT_ROWS, max=MAX_ROWS)] = DEFAULT_ROWS,
    seed: Annotated[int, flag("--seed", "Of the draw of rows.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Say what to do to the vectors of a source, with the evidence, measured on held-out rows of it.

    Is there a mean direction, does removing it help, how small can vectors be and at what price, was the encoder
    trained to be cut, does a chain fitted here serve other text. One chain is recommended with its reasons, a
    runner-up, and what the sample is too small to tell. Advice that was stopped goes on from what it has encoded.
    """
    require_extra("matplotlib")
    import orjson

    from service.names import require_name
    from training.advice.advise import advise as run
    from training.advice.report import format_terminal, render_html, to_json
    from training.sources.source import open_source

    settings, home = state()
    if fit is not None:
        require_name(fit)
    registry_with_places(write=True)  # refuses a folder that cannot be written, before hours of encoding
    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise BadValueError(f"the report is a file in a folder that is there, such as advice.html; got {report}")
    texts = open_source(source).kind() == "texts"
    if encoder is not None and not texts and fit is None:
        raise BadValueError(f"{source} holds vectors: --encoder is only for the chain that --fit makes")
    loaded = load_encoder(settings, encoder) if texts or encoder else None
    advice_request = AdviceRequest(source, keep, rows, seed)
    with ProgressBar() as progress:
        found = run(advice_request, loaded, home.vectors, progress)
    if not as_json:
        typer.echo(format_terminal(found))
    if report is not None:
        replace_synced(report, render_html(found).encode())
    outcome: dict[str, Any] = {"fit": None}
    try:
        if fit is not None:
            outcome = fitted(found, fit, advice_request, loaded, settings)
            if not as_json:
                typer.echo("\n" + (outcome.get("fit_error") or fit_in_words(outcome["fit"])))
    finally:  # what was measured is told though the fit fails
        if as_json:
            typer.echo(orjson.dumps(to_json(found) | outcome, option=orjson.OPT_INDENT_2))


def fitted(
    found: "Advice", name: str, advice_request: AdviceRequest, encoder: "Encoder | None", settings: "Settings"
) -> dict[str, Any]:
    """What came of the fit, as the API's jobs say it; that nothing is recommended is an answer and no failure."""
    from service.advise_job import fit_advised

    try:
        with ProgressBar() as progress:
            return {"fit": fit_advised(found, name, advice_request, encoder, settings, progress, command_line())}
    except AdviceError as error:
        return {"fit": None, "fit_error": str(error)}
