"""`lathe advise`: advice on what to do to the vectors of a source."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
from lathe.training.advice.request import DEFAULT_KEEP, DEFAULT_ROWS, MAX_ROWS, AdviceRequest, find_missing_module
from lathe.training.errors import AdviceError
from lathe.training.fitting.fit_request import MIN_DISTINCT_ROWS
from lathe.transforms.files import replace_synced

if TYPE_CHECKING:
    from lathe.service.settings import Settings
    from lathe.training.advice.advise import Advice
    from lathe.training.advice.index_plan import IndexPlanner
    from lathe.training.encoder.text_encoder import TextEncoder


def advise(
    source: Annotated[str, flag("--source", SOURCE)],
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    report: Annotated[Path | None, flag("--report", "Write a page with tables and pictures: OUT.html")] = None,
    fit: Annotated[str | None, flag("--fit", "Fit the recommended chain, and register it under this name.")] = None,
    keep: Annotated[
        float,
        flag(
            "--keep",
            "Share of the ten nearest neighbours (rescored) and of split-half retrieval that must be retained.",
            min=0,
            max=1,
        ),
    ] = DEFAULT_KEEP,
    rows: Annotated[int, flag("--rows", "Maximum distinct rows.", min=MIN_DISTINCT_ROWS, max=MAX_ROWS)] = DEFAULT_ROWS,
    pairs: Annotated[
        str | None,
        flag("--pairs", "FILE of texts with the fields query and document, to try a query adapter: see lathe fit."),
    ] = None,
    recall: Annotated[
        float | None,
        flag("--recall", "Plan an index: share of the ten nearest rows that a search must find.", min=0.01, max=0.9999),
    ] = None,
    memory: Annotated[
        str | None,
        flag("--memory", "Plan an index: memory for its graph, such as 2GB. [default: as little as possible]"),
    ] = None,
    index_rows: Annotated[
        int | None, flag("--index-rows", "Plan an index of so many rows. [default: those of the source]", min=1)
    ] = None,
    seed: Annotated[int, flag("--seed", "Seed of the sample of rows.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Recommend what to do to the vectors of a source, with the evidence, measured on held-out rows.

    It tests for a mean direction and whether removing it helps, how small vectors can be and at what cost, how few
    bytes are enough and what a database would reach with as many, whether the encoder was trained to be cut, and
    whether a chain fitted here serves other text. With --pairs, it tries a query adapter. It recommends a chain and a
    runner-up, and says what the sample is too small to tell. With --recall, --memory or --index-rows, it builds graphs
    over the sample and says which index reaches that recall within that memory. If it was stopped, the same command
    continues.
    """
    if module := find_missing_module():
        raise AdviceError(f"advice needs {module}: pip install 'lathe-training[evaluation]'")
    import orjson

    from lathe.service.chains.names import require_name
    from lathe.training.advice.advise import advise as run
    from lathe.training.advice.report import format_terminal, render_html, to_json
    from lathe.training.sources.source import open_source

    settings, home = load_state()
    if fit is not None:
        require_name(fit)
    planner = _build_planner(recall, memory, index_rows)
    open_chains(write=True)  # fails before hours of encoding if the folder cannot be written
    if report is not None and (report.is_dir() or not report.resolve().parent.is_dir()):
        raise BadValueError(f"--report is {report}; it must be a file in an existing folder, such as advice.html")
    texts = open_source(source).kind() == "texts"
    if encoder is not None and not texts and fit is None:
        raise BadValueError(f"{source} holds vectors: --encoder is only for the chain that --fit makes")
    loaded = load_encoder(settings, encoder) if texts or encoder else None
    advice_request = AdviceRequest(source, keep, rows, seed, pairs)
    with ProgressBar() as progress:
        advice = run(advice_request, loaded, home.vectors, progress, planner)
    if not as_json:
        typer.echo(format_terminal(advice))
    if report is not None:
        replace_synced(report, render_html(advice).encode())
    outcome: dict[str, Any] = {"fit": None}
    try:
        if fit is not None:
            outcome = _fit_recommended(advice, fit, advice_request, loaded, settings)
            if not as_json:
                typer.echo("\n" + (outcome.get("fit_error") or format_fit_result(outcome["fit"])))
    finally:  # the measurements are printed even if the fit fails
        if as_json:
            typer.echo(orjson.dumps(to_json(advice) | outcome, option=orjson.OPT_INDENT_2))


def _build_planner(recall: float | None, memory: str | None, rows: int | None) -> "IndexPlanner | None":
    """Return the planner of an index, or None if no option asks for one.

    Raises:
        BadValueError: if `memory` is no number of bytes.
    """
    if recall is None and memory is None and rows is None:
        return None
    from lathe.service.index.graph_trial import measure_graph
    from lathe.training.advice.index_plan import IndexGoal, IndexPlanner

    limit = None if memory is None else _parse_bytes(memory)
    return IndexPlanner(IndexGoal(recall or IndexGoal.recall, limit, rows), measure_graph)


def _parse_bytes(written: str) -> int:
    """Parse a number of bytes with a unit, as `2GB`, `500 MB` or `512MiB`; raise `BadValueError` for anything else."""
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        count = int(TypeAdapter(ByteSize).validate_python(written))
    except ValidationError:
        count = 0
    if count <= 0:
        raise BadValueError(f"--memory is {written!r}; it must be a number of bytes such as 2GB or 500MiB", "memory")
    return count


def _fit_recommended(
    advice: "Advice", name: str, advice_request: AdviceRequest, encoder: "TextEncoder | None", settings: "Settings"
) -> dict[str, Any]:
    """Fit the recommended chain on the whole source, register it under the name, and return `{"fit": result}`.

    If the advice recommends none, return `{"fit": None, "fit_error": message}`.
    """
    from lathe.service.jobs.kinds.advise import fit_recommended

    try:
        with ProgressBar() as progress:
            return {
                "fit": fit_recommended(advice, name, advice_request, encoder, settings, progress, format_command_line())
            }
    except AdviceError as error:
        return {"fit": None, "fit_error": str(error)}
