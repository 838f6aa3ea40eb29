"""`lathe diagnose`: what is odd about the vectors of a source, before and after a chain."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from service.cli.options import SOURCE, ProgressBar, flag, load_encoder, registry_with_places, state
from service.errors import BadValueError

if TYPE_CHECKING:
    from transforms.quality import Diagnostics

BAR = 40
"""Characters of the longest bar of the spectrum."""


def diagnose(
    source: Annotated[str, flag("--source", SOURCE)],
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    chain: Annotated[str | None, flag("--chain", "NAME or NAME@VERSION, to look behind it too.")] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Look at a source's vectors: common direction, lengths, spectrum, rows that are zero or repeat others.

    Texts are encoded first; a stopped run can be started again and goes on. ‖μ‖ below twice its
    noise floor is no direction at all; far above, r2 has something to remove.
    """
    from service.targets import Targets
    from training.fitting.encoding import encode_source
    from training.sources.source import open_source
    from training.workspace import claim_workspace_folder
    from transforms.base import TransformedView
    from transforms.quality import diagnose as diagnose_vectors

    settings, home = state()
    opened = open_source(source)
    texts = opened.kind() == "texts"
    if encoder is not None and not texts:
        raise BadValueError(f"{source} holds vectors: leave --encoder out")
    loaded = load_encoder(settings, encoder) if texts else None
    with claim_workspace_folder(
        home.vectors, opened.workspace_key(loaded.fingerprint if loaded else None)[:32]
    ) as folder:
        with ProgressBar() as progress:
            vectors = encode_source(opened, loaded, folder, progress).vectors
        found = {"before": diagnose_vectors(vectors)}
        if chain is not None:
            targets = Targets(*registry_with_places(write=False))
            target = (
                targets.of_encoder(loaded, chain, None) if loaded else targets.of_vectors(vectors.shape[1], chain, None)
            )
            found["after"] = diagnose_vectors(TransformedView(vectors, target.dimensions, target.apply))
    typer.echo(json.dumps(found, indent=1) if as_json else in_words(found))


def in_words(found: "dict[str, Diagnostics]") -> str:
    """The diagnostics as a table, and the spectrum as bars."""
    sides = list(found)
    lines = [f"{'':28}" + "".join(f"{side:>14}" for side in sides)]
    rows: list[tuple[str, list[Any]]] = [
        ("rows", [found[side]["n"] for side in sides]),
        ("dimensions", [found[side]["dimensions"] for side in sides]),
        ("zero rows", [found[side]["zero_rows"] for side in sides]),
        ("rows that repeat others", [found[side]["duplicate_rows"] for side in sides]),
        ("rows of unit length", [f"{found[side]['norms']['unit']:.1%}" for side in sides]),
        ("mean direction ‖μ‖", [found[side]["mean_norm"] for side in sides]),
        ("  by chance alone", [found[side]["noise_floor"] for side in sides]),
        ("  |cos| to top direction", [found[side]["alignment"]["centered"] for side in sides]),
        ("  … of uncentred vectors", [found[side]["alignment"]["uncentered"] for side in sides]),
        ("participation ratio", [found[side]["participation_ratio"] for side in sides]),
        ("IsoScore", [found[side]["isoscore"] for side in sides]),
        ("rank", [found[side]["rank"] for side in sides]),
        *(
            (f"directions for {float(share):.0%}", [found[side]["dimensions_for"][share] for side in sides])
            for share in found["before"]["dimensions_for"]
        ),
    ]
    lines += [f"{name:28}" + "".join(f"{shown(value):>14}" for value in values) for name, values in rows]
    for side in sides:
        lines += ["", f"share of the variance by direction, {side}", *bars(found[side]["spectrum"])]
    return "\n".join(lines)


def bars(spectrum: list[list[float]]) -> list[str]:
    """The spectrum as bars, the first the longest."""
    most = max((share for _, share in spectrum), default=0.0)
    return [
        f"{rank:>8} {share:>9.4%} {'█' * round(BAR * share / most) if most else ''}".rstrip()
        for rank, share in spectrum
    ]


def shown(value: Any) -> str:
    """A figure for reading."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
