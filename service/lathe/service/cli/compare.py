"""`lathe chains compare`: two chains on the same rows of a source."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.cli.options import ProgressBar, flag, load_encoder, load_state, open_chains
from lathe.service.errors import BadValueError
from lathe.training.reporting.text import align_columns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lathe.service.chains.loaded_chain import LoadedChain
    from lathe.service.settings import Settings

ROWS = 2000
"""Default number of rows."""


def compare(
    first: Annotated[str, typer.Argument(help="NAME or NAME@VERSION")],
    second: Annotated[str, typer.Argument(help="NAME or NAME@VERSION")],
    source: Annotated[str, flag("--source", "Texts or vectors, of which distinct rows are sampled.")],
    rows: Annotated[int, flag("--rows", "Maximum number of rows.", min=20, max=20_000)] = ROWS,
    k: Annotated[int, flag("-k", "Number of neighbours of each row.", min=1, max=100)] = 10,
    seed: Annotated[int, flag("--seed", "Seed of the sample.", min=0)] = 0,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Compare the neighbours that two chains find among rows of a source with those of the vectors before them.

    The recall of the raw neighbours says which chain is better on this source. A low agreement says that search results
    will differ, and not which are better. Neighbours among a sample differ from those in a whole index: compare the two
    chains with each other, not with figures of other sources.
    """
    from lathe.transforms.quality import compare_neighbours

    settings, _ = load_state()
    registry = open_chains(write=False)
    first_chain, second_chain = registry.load(first), registry.load(second)
    if None not in (first_chain.encoder_fingerprint, second_chain.encoder_fingerprint):
        if first_chain.encoder_fingerprint != second_chain.encoder_fingerprint:
            raise BadValueError(f"{first_chain.ref} and {second_chain.ref} take vectors of different encoders")

    raw = _sample_vectors(settings, first_chain, second_chain, source, rows, seed)
    comparison: dict[str, Any] = {"first": first_chain.ref, "second": second_chain.ref, "rows": len(raw), "k": k}
    comparison |= compare_neighbours(raw, first_chain.chain.floats(raw), second_chain.chain.floats(raw), k)
    comparison["bytes_per_vector"] = {
        "first": first_chain.chain.bytes_per_vector,
        "second": second_chain.chain.bytes_per_vector,
    }
    typer.echo(json.dumps(comparison, indent=1) if as_json else format_comparison(comparison))


def _sample_vectors(
    settings: "Settings", first: "LoadedChain", second: "LoadedChain", source: str, rows: int, seed: int
) -> "NDArray[np.float32]":
    """Sample distinct rows of a source and return their vectors `(n, d)`, encoding texts if needed."""
    import numpy as np

    from lathe.training.sources.row_sample import sample_rows
    from lathe.training.sources.source import open_source

    sample = sample_rows(open_source(source), rows, seed)
    if sample.vectors is not None:
        return np.asarray(sample.vectors, np.float32)
    recorded = first.chain.metadata.get("encoder") or second.chain.metadata.get("encoder")
    if recorded is None:
        raise BadValueError(f"{first.ref} and {second.ref} were fitted on vectors: name a source of vectors", "source")

    known = {spec.name for spec in settings.specs}
    with ProgressBar() as progress:
        encoder = load_encoder(settings, recorded["name"] if recorded["name"] in known else recorded["model"])
        encoded = encoder.encode(
            sample.texts, on_batch=lambda done: progress(done / len(sample.texts), f"{done:,} texts encoded")
        )
    return encoded.vectors


def format_comparison(comparison: dict[str, Any]) -> str:
    """Format a comparison of two chains as a table and a sentence on which finds more of the raw neighbours."""
    recall, k = comparison["raw_recall_at_k"], comparison["k"]
    table = [
        ["", comparison["first"], comparison["second"]],
        ["bytes a vector", *(str(comparison["bytes_per_vector"][side]) for side in ("first", "second"))],
        [f"recall@{k} of the raw neighbours", *(_format_interval(recall[side]) for side in ("first", "second"))],
    ]
    difference = recall["difference"]
    better = comparison["second"] if difference["low"] > 0 else comparison["first"] if difference["high"] < 0 else None
    verdict = "The difference is within its interval" if better is None else f"{better} finds more of them"
    return "\n".join(
        [
            align_columns(table),
            "",
            f"{verdict}: {comparison['second']} less {comparison['first']} is {difference['value']:+.3f} "
            f"({difference['low']:+.3f} to {difference['high']:+.3f}), on {comparison['rows']:,} rows.",
            f"Both find the same neighbours in {comparison['agreement_at_k']['value']:.1%} of the cases.",
        ]
    )


def _format_interval(measured: dict[str, float]) -> str:
    return f"{measured['value']:.3f} ({measured['low']:.3f} to {measured['high']:.3f})"
