"""`lathe index import`: an existing store, made smaller."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.options import ProgressBar, find_encoder, flag, load_encoder, numbers, registry_with_places, state
from service.errors import BadValueError
from service.index.spec import Metric
from training.fitting.gates import UPPER_BOUNDS

if TYPE_CHECKING:
    from service.index.importing import Cost
    from service.settings import Settings
    from training.encoder.encoder import Encoder

SHOWN = {"recall_at_10": "recall@10", "recall_at_10_rescored_4x": "  rescored 4×", "local_spearman": "local Spearman"}

COMPARED = ("chain", "space_id", "raw_space_id", "metric", "text_field", "originals")
"""In what an index that is there must be as asked."""


class Encoders:
    """The configured encoders, loaded when they are wanted."""

    def __init__(self, settings: "Settings") -> None:
        self.settings = settings
        self.loaded: dict[str, Encoder] = {}

    def named(self, name: str | None) -> "Encoder":
        """The encoder of that name; the default for None."""
        spec = find_encoder(self.settings, name)
        if spec.name not in self.loaded:
            self.loaded[spec.name] = load_encoder(self.settings, name)
        return self.loaded[spec.name]

    def all(self) -> "list[Encoder]":
        """All that are configured."""
        return [self.named(spec.name) for spec in self.settings.specs]


def import_rows(
    name: Annotated[str, flag("--name", "Name of the index; made if there is none.")],
    source: Annotated[
        str, flag("--source", "FILE.npy, .parquet#COLUMN, .jsonl#FIELD, .hdf5[#DATASET] or .faiss: vectors, or texts.")
    ],
    chain: Annotated[str, flag("--chain", "NAME or NAME@VERSION; none keeps vectors as they are.")] = "compact",
    encoder: Annotated[str | None, flag("--encoder", "Whose vectors they are; for texts, who encodes them.")] = None,
    ids: Annotated[Path | None, flag("--ids", "A file with one id a line, or a .npy of numbers.")] = None,
    id_field: Annotated[
        str | None, flag("--id-field", "The rows' field with the id. [default: id, _id, else the row's number]")
    ] = None,
    text_field: Annotated[str | None, flag("--text-field", "Keep texts in the metadata under this name.")] = None,
    dimensions: Annotated[int | None, flag("--dimensions", "A smaller size, where the chain is nested.", min=1)] = None,
    metric: Annotated[Metric, flag("--metric", "How vectors are compared.")] = "cosine",
    m: Annotated[int, flag("--m", "Links of a node of the graph.", min=2, max=256)] = 16,
    ef_construction: Annotated[
        int, flag("--ef-construction", "Candidates looked at when a node is linked.", min=1, max=10_000)
    ] = 200,
    originals: Annotated[
        Literal["float32", "float16"], flag("--originals", "How the record keeps the original vectors.")
    ] = "float32",
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the chain must reach, such as recall_at_10_rescored_4x=0.95.")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Only say what the chain would cost.")] = False,
    skip_zeros: Annotated[bool, flag("--skip-zeros", "Leave out rows whose vector is zero.")] = False,
    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False,
) -> None:
    """Fill an index from vectors or texts, after saying what the chain costs on those very vectors.

    A stopped import can be started again and goes on. An index that a server is serving belongs to
    that server: import into a new one, which the server finds by itself, or send rows to /upsert.
    """
    import torch

    from service.bodies import IndexBody
    from service.index.backend import open_indexes
    from service.index.importing import Ids, fill, measure
    from service.index.indexes import require_same
    from service.index.reducer import Reducer
    from service.index.specs import Specs
    from service.targets import RAW, Targets
    from training.sources.source import open_source

    settings, home = state()
    registry, places = registry_with_places(write=True)
    torch.set_num_threads(settings.threads)
    encoders = Encoders(settings)
    opened = open_source(source)
    width = opened.width()
    specs = Specs(registry, Targets(registry, places), encoders.named, encoders.all)
    spec, artifact = specs.of_new(
        IndexBody(
            chain=chain,
            encoder=encoders.named(encoder).name if width is None or encoder else None,
            width=width if chain == RAW and encoder is None else None,
            dimensions=dimensions,
            metric=metric,
            m=m,
            ef_construction=ef_construction,
            originals=originals,
            text_field=text_field,
        )
    )
    reader = encoders.named(spec.encoder) if width is None else None
    named = Ids(ids, id_field, opened.count())
    working = settings.model_copy(update={"job_threads": settings.threads})  # nobody else is served meanwhile
    indexes = open_indexes(working, home, lambda _, texts: encode(reader, texts))
    made = name not in indexes.names()
    if not made and not dry_run:
        indexes.require_owned(name)  # better now than after the store was read
    with ProgressBar() as progress:
        cost = measure(opened, reader, spec, Reducer(spec, artifact), progress)
    typer.echo(in_words(cost, f"{opened.name}, {spec.width} → {spec.dimensions} through {spec.chain}"), err=as_json)
    require_quality(cost, numbers(gate, "--gate"))
    result: dict[str, Any] = {"index": name, "spec": spec.json(), "cost": asdict(cost)}
    if not dry_run:
        key = hashlib.sha256(
            json.dumps([opened.content_key(reader.fingerprint if reader else None), str(ids), id_field]).encode()
        ).hexdigest()
        try:
            index = indexes.create(name, spec, artifact)
            require_same(name, index.spec, {field: spec.json()[field] for field in COMPARED})
            with ProgressBar() as progress:
                result |= fill(index, opened, reader, named, key, progress, skip_zeros)
                index.wait_until_linked(progress)
            result["count"] = index.describe()["count"]
        except BaseException:
            if made and name in indexes.names() and not indexes.get(name).describe()["count"]:
                indexes.delete(name)
            raise
        finally:
            indexes.close()
        told = {"zero rows left out": result["left_out"], "items replaced": result["replaced"]}
        more = "".join(f"; {count:,} {what}" for what, count in told.items() if count)
        typer.echo(f"{name}: {result['count']:,} items in the space {spec.space_id}{more}", err=as_json)
    if as_json:
        typer.echo(json.dumps(result, indent=1))


def encode(encoder: "Encoder | None", texts: list[str]) -> Any:
    """Vectors of texts."""
    if encoder is None:
        raise BadValueError("texts need an encoder to become vectors", param="encoder")
    return encoder.encode(texts).vectors


def require_quality(cost: "Cost", gates: Mapping[str, float]) -> None:
    """Raise `BadValueError` unless the chain reaches what was asked of it."""
    unknown = set(gates) - set(cost.quality)
    if unknown:
        raise BadValueError(f"there is no gate {', '.join(sorted(unknown))}; there are {', '.join(cost.quality)}")
    failed = []
    for key, wanted in gates.items():
        found = cost.quality[key]
        if found is None or (found > wanted if key in UPPER_BOUNDS else found < wanted):
            failed.append(f"{key} {wanted} (it is {found})")
    if failed:
        raise BadValueError(f"nothing was written: on these vectors the chain does not reach {', '.join(failed)}")


def in_words(cost: "Cost", title: str) -> str:
    """A cost for reading."""
    lines = [f"{title}, measured on {cost.sampled:,} of {cost.rows:,} rows"]
    for key, name in SHOWN.items():
        value = cost.quality[key]
        lines.append(f"  {name:20}{'–' if value is None else f'{value:.3f}':>16}")
    for name, sizes in (("bytes a vector", cost.bytes_per_vector), ("bytes of the graph", cost.graph_bytes)):
        lines.append(f"  {name:20}{sizes['before']:>16,} → {sizes['after']:,}")
    return "\n".join(lines)
