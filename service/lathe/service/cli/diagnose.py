"""`lathe diagnose`: statistics of the vectors of a source, before and after a chain."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.cli.options import SOURCE, ProgressBar, flag, load_encoder, load_state, open_chains
from lathe.service.errors import BadValueError
from lathe.training.reporting.text import MISSING, align_columns

if TYPE_CHECKING:
    from lathe.transforms.quality import Diagnostics

BAR_CHARACTERS = 40
"""Characters of the longest bar of the spectrum."""


def diagnose(
    source: Annotated[str, flag("--source", SOURCE)],
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    chain: Annotated[
        str | None, flag("--chain", "NAME or NAME@VERSION: also diagnose the vectors after this chain.")
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Diagnose a source's vectors: mean direction, norms, spectrum, rows that are zero or duplicates.

    Texts are encoded first; if that was stopped, the same command continues. ‖μ‖ below twice its noise floor is
    chance; far above, there is a mean direction that r2 can remove.
    """
    from lathe.service.chains.resolve import ChainResolver
    from lathe.training.fitting.encoding import encode_source
    from lathe.training.sources.source import open_source
    from lathe.training.workspace import claim_workspace_folder
    from lathe.transforms.base import TransformedView
    from lathe.transforms.quality import diagnose as diagnose_vectors

    settings, home = load_state()
    opened = open_source(source)
    texts = opened.kind() == "texts"
    if encoder is not None and not texts:
        raise BadValueError(f"{source} holds vectors: leave --encoder out")
    loaded = load_encoder(settings, encoder) if texts else None
    with claim_workspace_folder(
        home.vectors, opened.workspace_key(loaded.vectors_key if loaded else None)[:32]
    ) as folder:
        with ProgressBar() as progress:
            vectors = encode_source(opened, loaded, folder, progress).vectors
        diagnostics = {"before": diagnose_vectors(vectors)}
        if chain is not None:
            resolver = ChainResolver(open_chains(write=False))
            target = (
                resolver.resolve_for_encoder(loaded, chain, None)
                if loaded
                else resolver.resolve_for_vectors(vectors.shape[1], chain, None)
            )
            diagnostics["after"] = diagnose_vectors(TransformedView(vectors, target.dimensions, target.apply))
    typer.echo(json.dumps(diagnostics, indent=1) if as_json else format_diagnostics(diagnostics))


def format_diagnostics(diagnostics: "dict[str, Diagnostics]") -> str:
    """Format the diagnostics before and after a chain as a table, and each spectrum as bars."""
    sides = diagnostics.values()
    rows: list[tuple[str, list[Any]]] = [
        ("rows", [side["n"] for side in sides]),
        ("dimensions", [side["dimensions"] for side in sides]),
        ("zero rows", [side["zero_rows"] for side in sides]),
        ("rows that repeat others", [side["duplicate_rows"] for side in sides]),
        ("rows of unit length", [f"{side['norms']['unit']:.1%}" for side in sides]),
        ("mean direction ‖μ‖", [side["mean_norm"] for side in sides]),
        ("  by chance alone", [side["noise_floor"] for side in sides]),
        ("  |cos| to top direction", [side["alignment"]["centered"] for side in sides]),
        ("  … of uncentred vectors", [side["alignment"]["uncentered"] for side in sides]),
        ("participation ratio", [side["participation_ratio"] for side in sides]),
        ("IsoScore", [side["isoscore"] for side in sides]),
        ("rank", [side["rank"] for side in sides]),
        *(
            (f"directions for {float(share):.0%}", [side["dimensions_for"][share] for side in sides])
            for share in diagnostics["before"]["dimensions_for"]
        ),
    ]
    table = [["", *diagnostics], *([name, *map(_format_value, values)] for name, values in rows)]
    lines = [align_columns(table)]
    for name, side in diagnostics.items():
        lines += ["", f"share of the variance by direction, {name}", *_draw_bars(side["spectrum"])]
    return "\n".join(lines)


def _draw_bars(spectrum: list[list[float]]) -> list[str]:
    """Draw a spectrum of (rank, share) rows as lines with bars, the largest share with the longest bar."""
    largest = max((share for _, share in spectrum), default=0.0)
    return [
        f"{rank:>8} {share:>9.4%} {'█' * round(BAR_CHARACTERS * share / largest) if largest else ''}".rstrip()
        for rank, share in spectrum
    ]


def _format_value(value: Any) -> str:
    """Format a statistic: a float with four decimals, a whole number with commas, None as a dash."""
    if value is None:
        return MISSING
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
