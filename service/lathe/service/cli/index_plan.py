"""`lathe index plan`: which chain and graph an index needs, before anything is built."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.cli.index_import import LazyEncoders
from lathe.service.cli.options import SOURCE, ProgressBar, flag, load_state, open_chains
from lathe.service.errors import BadValueError
from lathe.training.reporting.text import align_columns

if TYPE_CHECKING:
    from lathe.service.index.planning import Candidate, Setting
    from lathe.transforms.vectors import FloatArray

SAMPLE_ROWS = 20_000
"""Default of `--sample`."""


def plan(
    source: Annotated[str, flag("--source", SOURCE)],
    recall: Annotated[
        float, flag("--recall", "Share of the true nearest rows that a search must find.", min=0.01, max=0.9999)
    ] = 0.95,
    memory: Annotated[
        str | None, flag("--memory", "Memory for the graph, such as 2GB. [default: as little as possible]")
    ] = None,
    rows: Annotated[
        int | None, flag("--rows", "Rows that the index is to have. [default: those of the source]", min=1)
    ] = None,
    k: Annotated[int, flag("--k", "Results of a search.", min=1, max=100)] = 10,
    chain: Annotated[
        list[str] | None,
        flag("--chain", "Chain to plan with; none leaves vectors as they are. [default: none, and codes fitted here]"),
    ] = None,
    encoder: Annotated[str | None, flag("--encoder", "Encoder of the vectors, or of the texts.")] = None,
    sample: Annotated[int, flag("--sample", "Maximum number of rows to measure on.", min=2000)] = SAMPLE_ROWS,
    seed: Annotated[int, flag("--seed", "Seed of the sample of rows.", min=0, max=2**32 - 1)] = 0,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Measure chains and graphs on a sample of rows, and say which one to build for the memory and the recall wanted.

    Nothing is stored. Sampled rows that are not indexed search the others, with all efforts and rescorings. From a
    quarter of the sample and from all of it, recall and time are extrapolated to the number of rows.
    """
    import torch

    from lathe.service.index.planning import choose_setting, list_best, measure_settings

    limit = None if memory is None else _parse_bytes(memory)
    torch.set_num_threads(1)
    with ProgressBar() as progress:
        total, base, queries, candidates = _prepare(source, encoder, chain, sample, seed)
        settings = measure_settings(candidates, base, queries, rows or total, k, progress)
    lines = list_best(settings, recall)
    if not as_json:
        typer.echo(f"{rows or total:,} rows, measured on {len(base):,}; recall@{k} {recall} wanted\n")
    try:
        chosen = choose_setting(settings, recall, limit)
    except BadValueError:
        if not as_json:
            typer.echo(_format_settings(lines, None) + "\n")
        raise
    if as_json:
        answer = {"chosen": asdict(chosen), "settings": [asdict(one) for one in settings]}
        typer.echo(json.dumps(answer, indent=1))
        return
    typer.echo(_format_settings([one for one in lines if (one.chain, one.m) != (chosen.chain, chosen.m)], chosen))
    typer.echo(_format_commands(chosen, source))


def _parse_bytes(written: str) -> int:
    """Parse a number of bytes with a unit, as `2GB`, `500 MB` or `512MiB`.

    Raises:
        BadValueError: if it is none.
    """
    from pydantic import ByteSize, TypeAdapter, ValidationError

    try:
        found = int(TypeAdapter(ByteSize).validate_python(written))
    except ValidationError:
        found = 0
    if found <= 0:
        raise BadValueError(f"--memory is {written!r}; it must be a number of bytes such as 2GB or 500MiB", "memory")
    return found


def _prepare(
    source: str, encoder: str | None, chains: list[str] | None, sample: int, seed: int
) -> "tuple[int, FloatArray, FloatArray, list[Candidate]]":
    """Return the number of rows of a source, sampled vectors to index, others to search, and chains to plan with."""
    from lathe.service.chains.names import RAW
    from lathe.service.chains.resolve import ChainResolver
    from lathe.service.index.planning import Candidate, fit_candidates, split_queries
    from lathe.service.index.spec_resolver import IndexRequest, SpecResolver
    from lathe.training.advice.row_sample import sample_rows
    from lathe.training.sources.source import open_source

    settings, _ = load_state()
    encoders = LazyEncoders(settings)
    opened = open_source(source)
    of_texts = opened.detect_kind() is None
    sampled = sample_rows(opened, sample, seed)
    vectors: Any = encoders.load(encoder).encode(sampled.texts).vectors if of_texts else sampled.vectors
    base, queries = split_queries(vectors[vectors.any(axis=1)])
    if not chains:
        return sampled.rows, base, queries, list(fit_candidates(base))
    registry = open_chains(write=False)
    specs = SpecResolver(registry, ChainResolver(registry), encoders.load, encoders.load_all)
    candidates = []
    for name in chains:
        raw = name == RAW
        spec, artifact = specs.resolve_new(
            IndexRequest(name, encoder=None if raw else encoder, width=vectors.shape[1] if raw else None)
        )
        if spec.width != vectors.shape[1]:
            raise BadValueError(f"the chain {name} takes {spec.width} dimensions, the source has {vectors.shape[1]}")
        candidates.append(Candidate(name, spec, artifact))
    return sampled.rows, base, queries, candidates


def _format_settings(others: "list[Setting]", chosen: "Setting | None") -> str:
    """Format settings as a table, the chosen one first."""
    from lathe.service.index.planning import format_bytes

    header = ["", "chain", "m", "ef", "rescore", "recall", "on the sample", "memory", "files", "µs a search", "build"]
    rows = [header]
    for one in [*([chosen] if chosen else []), *others]:
        rows.append(
            [
                "→" if one is chosen else "",
                one.chain,
                str(one.m),
                str(one.ef),
                "no" if one.rescore == 1 else f"{one.rescore}×",
                f"{one.recall:.3f}",
                f"{one.sampled_recall:.3f}",
                format_bytes(one.memory),
                format_bytes(one.disk),
                f"{one.microseconds:,.0f}",
                f"{one.build_seconds:,.0f} s",
            ]
        )
    return align_columns(rows, left=(0, 1))


def _format_commands(chosen: "Setting", source: str) -> str:
    """Format the commands that build and search an index with a setting."""
    named = chosen.chain
    lines = ["", "To build and search it:"]
    if chosen.fitted_bytes is not None:
        named = f"codes{chosen.fitted_bytes}"
        lines.append(f"  lathe fit --source {source} --bytes {chosen.fitted_bytes} --name {named}")
    lines.append(f"  lathe index import --name NAME --source {source} --chain {named} --m {chosen.m}")
    rescoring = "" if chosen.rescore == 1 else f', "rescore": {chosen.rescore}'
    lines.append(f'  POST /indexes/NAME/search {{"ef": {chosen.ef}{rescoring}, …}}')
    return "\n".join(lines)
