"""`lathe chains`: listing, comparison, promotion, rollback, deletion and import of chains."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.cli.options import (
    SERVE_DIMENSIONS,
    ProgressBar,
    describe_size_routes,
    flag,
    load_encoder,
    load_state,
    open_chains,
    parse_numbers,
    split_versioned_name,
)
from lathe.service.errors import BadValueError
from lathe.training.reporting.text import MISSING, align_columns, format_number
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import expand_home

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from lathe.service.chains.loaded_chain import LoadedChain
    from lathe.service.chains.registry import SizeRoutes
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
    """Compare the neighbours that two chains find among rows of a source with the neighbours before the chains.

    The neighbours before the chains are those by the raw vectors. The recall of the raw neighbours says which chain is
    better on this source. A low agreement says that search results will differ, and not which are better. Neighbours
    among a sample differ from those in a whole index: compare the two chains with each other, not with the recall on
    other sources.
    """
    from lathe.transforms.quality import compare_neighbours

    settings, _ = load_state()
    registry = open_chains(write=False)
    first_chain, second_chain = registry.load(first), registry.load(second)
    if None not in (first_chain.encoder_fingerprint, second_chain.encoder_fingerprint):
        # A chain that was fitted without an encoder can be compared with any other.
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
    """Return the comparison of two chains as text: a table, and which chain finds more of the raw neighbours."""
    recall, k = comparison["raw_recall_at_k"], comparison["k"]
    intervals = [
        f"{measured['value']:.3f} ({measured['low']:.3f} to {measured['high']:.3f})"
        for measured in (recall["first"], recall["second"])
    ]
    table = [
        ["", comparison["first"], comparison["second"]],
        ["bytes a vector", *(str(comparison["bytes_per_vector"][side]) for side in ("first", "second"))],
        [f"recall@{k} of the raw neighbours", *intervals],
    ]
    difference = recall["difference"]
    # An interval that contains 0 favours neither.
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


app = typer.Typer(
    help="List, show, compare, promote, roll back and delete chains.", no_args_is_help=True, rich_markup_mode=None
)

Json = Annotated[bool, flag("--json", "Print JSON.")]


@app.command("list")
def list_chains(as_json: Json = False) -> None:
    """List all chains with the live version's number of dimensions, recall@10 and steps."""
    registry = open_chains(write=False)
    chains = [registry.describe(name) for name in registry.names()]
    if as_json:
        typer.echo(json.dumps(chains, indent=1))
        return
    rows = [["chain", "live", "versions", "dimensions", "recall@10", "out of domain", "steps"]]
    for chain in chains:
        certificate = chain.get("certificate") or {}
        out_of_domain = [corpus["recall_at_10"] for corpus in certificate.get("out_of_domain", {}).values()]
        rows.append(
            [
                chain["name"],
                str(chain["live"] or MISSING),
                str(len(chain["versions"])),
                f"{chain.get('input_dimensions', MISSING)}→{chain.get('output_dimensions', MISSING)}",
                format_number(certificate.get("recall_at_10"), ".3f"),
                format_number(out_of_domain[0] if out_of_domain else None, ".3f"),
                ",".join(step["kind"] for step in chain.get("steps", [])) or chain.get("error", ""),
            ]
        )
    typer.echo(align_columns(rows, left=(0, 6)))


@app.command()
def show(chain: Annotated[str, typer.Argument(help="NAME or NAME@VERSION")]) -> None:
    """Print steps, provenance and certificate of a chain as JSON."""
    registry = open_chains(write=False)
    description = registry.describe(chain)
    versions = [{"version": v["version"], "state": v["state"]} for v in description["versions"]]
    typer.echo(json.dumps(description | {"versions": versions}, indent=1))
    if description["state"] == "corrupt":
        raise ArtifactError(str(description["error"]))


@app.command()
def promote(
    chain: Annotated[str, typer.Argument(help="NAME@VERSION")],
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the certificate must reach, besides the gates of the fit.")
    ] = None,
    force: Annotated[bool, flag("--force", "Promote it although it fails gates.")] = False,
    serve_dimensions: Annotated[bool, flag("--serve-dimensions", SERVE_DIMENSIONS)] = False,
) -> None:
    """Make a version of a chain live if its certificate passes the gates, which are thresholds on its measures."""
    from lathe.service.chains.version_folder import promote_with_gates

    registry = open_chains(write=True)
    name, version = split_versioned_name(chain)
    pointer = promote_with_gates(registry, name, version, parse_numbers(gate, "--gate"), force)
    forced = f", promoted past {', '.join(pointer.overridden_gates)}" if pointer.overridden_gates else ""
    typer.echo(f"{name}@{version} is live{forced}")
    if serve_dimensions:
        typer.echo(describe_size_routes(registry.size_routes.serve_dimensions(name)))


@app.command()
def rollback(name: Annotated[str, typer.Argument(help="NAME")]) -> None:
    """Make the version of a chain live that was live before, and print it."""
    typer.echo(f"{name}@{open_chains(write=True).rollback(name).live} is live")


@app.command()
def delete(
    chain: Annotated[str, typer.Argument(help="NAME@VERSION")],
    force: Annotated[bool, flag("--force", "Delete it although something uses it.")] = False,
) -> None:
    """Delete a version of a chain permanently.

    A version that a size route, an index or a column of PostgreSQL uses is deleted only with --force.
    """
    from lathe.service.chains.usage import delete_version
    from lathe.service.index.backend import describe_indexes

    registry = open_chains(write=True)
    name, version = split_versioned_name(chain)
    settings, home = load_state()
    delete_version(registry, name, version, force, home.uses, lambda: describe_indexes(settings, home))
    typer.echo(f"{name}@{version} is deleted")


app.command()(compare)


@app.command("import")
def import_chains(folder: Annotated[Path, typer.Argument(help="Another state folder")]) -> None:
    """Copy the chains of another state folder, for instance into the Redis that replicas are to share.

    A chain whose name exists here is left as it is. The choice of a chain for each number of dimensions is copied too,
    where none is made here.
    """
    from lathe.service.chains.registry import Registry
    from lathe.service.home import Home

    home = Home(expand_home(folder))
    source = Registry(home.chains)
    if not source.names():
        raise BadValueError(f"{folder} holds no chains: name a state folder, such as ~/.lathe")
    source_routes = source.size_routes.read()
    registry = open_chains(write=True)
    size_routes = registry.size_routes
    copied = [name for name in source.names() if registry.import_chain(name, source)]
    for name in source.names():
        outcome = f"{len(source.versions(name))} versions" if name in copied else "skipped, the name is in use here"
        typer.echo(f"{name}: {outcome}")
    for encoder, routes in source_routes.items():
        before = size_routes.read().get(encoder, {})
        for route, ref in routes.items():
            outcome = _copy_size_route(size_routes, before, encoder, route, ref)
            typer.echo(f"{_describe_route(route)} of encoder {encoder[:12]}: {outcome}")


def _copy_size_route(size_routes: "SizeRoutes", before: dict[str, str], encoder: str, route: str, ref: str) -> str:
    """Register a copied chain for the dimensions that it served elsewhere, if no chain here does.

    Returns a phrase that says what was done.
    """
    holder = size_routes.import_route(encoder, route, ref)
    if holder is None:
        return f"skipped, {ref} here is another chain or does not serve it"
    if holder != ref:
        return f"skipped, {holder} serves it here"
    return f"{ref}, as before" if before.get(route) == ref else ref


def _describe_route(route: str) -> str:
    from lathe.service.chains.registry import NESTED

    return "dimensions without a route of their own" if route == NESTED else f"dimensions {route}"
