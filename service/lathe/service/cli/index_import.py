"""`lathe index import`: filling an index from vectors or texts in files."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lathe.service.cli.options import (
    ProgressBar,
    build_request,
    find_encoder,
    flag,
    load_encoder,
    load_state,
    open_chains,
    parse_numbers,
    take_fields,
)
from lathe.service.errors import BadValueError
from lathe.service.index.spec import IndexRequest
from lathe.training.fitting.requests import list_failed_gates
from lathe.training.reporting.text import align_columns, format_number
from lathe.training.settings import Metric

if TYPE_CHECKING:
    from lathe.service.chains.registry import Registry
    from lathe.service.index.import_cost import ImportCost
    from lathe.service.index.protocol import Artifact
    from lathe.service.index.spec import IndexSpec
    from lathe.service.settings import Settings
    from lathe.training.encoder.text_encoder import TextEncoder
    from lathe.training.sources.source import Source

MEASURE_NAMES = {
    "recall_at_10": "recall@10",
    "recall_at_10_rescored_4x": "  rescored 4×",
    "local_spearman": "local Spearman",
}
"""Printed names of the measures of a chain's cost."""

COMPARED = ("chain", "space_id", "raw_space_id", "metric", "text_field", "originals")
"""Settings that an existing index must share with the command line."""


class LazyEncoders:
    """The encoders of the settings, each loaded when it is first used."""

    def __init__(self, settings: "Settings") -> None:
        self.settings = settings
        self.loaded: dict[str, TextEncoder] = {}

    def load(self, name: str | None) -> "TextEncoder":
        """Return an encoder by its name in the settings, or by a model's folder or hub id. None is the default one."""
        spec = find_encoder(self.settings, name)
        if spec.name not in self.loaded:
            self.loaded[spec.name] = load_encoder(self.settings, name)
        return self.loaded[spec.name]


@take_fields(
    IndexRequest,
    chain=None,
    width=None,
    metric=None,
    originals="Dtype of the stored original vectors; none stores only the codes of the chain.",
    text_field="Store texts in the metadata under this name.",
)
def import_rows(
    name: Annotated[str, flag("--name", "Name of the index; it is created if there is none.")],
    source: Annotated[str, flag("--source", "FILE.npy, .parquet#COLUMN, .jsonl#FIELD or .faiss: vectors, or texts.")],
    chain: Annotated[str, flag("--chain", "NAME or NAME@VERSION; none leaves vectors as they are.")] = "compact",
    ids: Annotated[Path | None, flag("--ids", "File with one id per line, or a .npy of numbers.")] = None,
    id_field: Annotated[
        str | None, flag("--id-field", "The rows' field with the id. [default: id, _id, else the row's number]")
    ] = None,
    prompt_name: Annotated[
        str | None, flag("--prompt-name", "Prompt of the texts. [default: the encoder's prompt of documents]")
    ] = None,
    metric: Annotated[
        Metric | None, flag("--metric", "Similarity measure. [default: the metric of a FAISS index, else cosine]")
    ] = None,
    *,
    fields: dict[str, Any],
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the chain must reach, such as recall_at_10_rescored_4x=0.95.")
    ] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Only measure and print what the chain costs.")] = False,
    skip_zeros: Annotated[bool, flag("--skip-zeros", "Leave out rows whose vector is zero.")] = False,
    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False,
) -> None:
    """Fill an index from vectors or texts, after measuring and printing what the chain costs on those vectors.

    If an import was stopped, the same command continues. An index that a server is serving belongs to that server:
    import into a new index, which the server finds by itself, or send rows to /upsert.
    """
    import torch

    from lathe.service.index.backend import open_indexes
    from lathe.service.index.embedded.calibration import calibrate_again
    from lathe.service.index.embedded.index import EmbeddedIndex
    from lathe.service.index.embedded.indexes import EmbeddedIndexes
    from lathe.service.index.import_cost import measure_cost
    from lathe.service.index.importing import Ids, add_rows
    from lathe.service.index.reducer import Reducer
    from lathe.service.index.spec import require_same_settings
    from lathe.training.sources.source import open_source

    settings, home = load_state()
    registry = open_chains(write=True)
    torch.set_num_threads(settings.threads)
    encoders = LazyEncoders(settings)
    opened = open_source(source)
    fields |= {"chain": chain, "metric": metric or _find_metric(opened)}
    spec, artifact, reader = resolve_rows(opened, fields, encoders, registry, prompt_name)
    row_ids = Ids(ids, id_field, opened.count())
    indexes = open_indexes(settings, home, lambda _, texts: encode_texts(reader, texts))
    if isinstance(indexes, EmbeddedIndexes):
        indexes.graph_threads = settings.threads  # no requests share the cores
    is_new = name not in indexes.names()
    if not is_new and not dry_run:
        indexes.require_owned(name)  # fails before the source is read

    with ProgressBar() as progress:
        cost = measure_cost(opened, reader, spec, Reducer(spec, artifact), progress)
    typer.echo(_format_cost(cost, f"{opened.name}, {spec.width} → {spec.dimensions} through {spec.chain}"), err=as_json)
    _require_gates(cost, parse_numbers(gate, "--gate"))

    result: dict[str, Any] = {"index": name, "spec": spec.to_json(), "cost": asdict(cost)}
    if not dry_run:
        # The index stores this key with the number of rows read, from which the same command goes on.
        key = hashlib.sha256(
            json.dumps([opened.content_key(reader.vectors_key if reader else None), str(ids), id_field]).encode()
        ).hexdigest()
        try:
            index = indexes.create(name, spec, artifact)
            require_same_settings(name, index.spec, {field: spec.to_json()[field] for field in COMPARED})
            with ProgressBar() as progress:
                result |= add_rows(index, opened, reader, row_ids, key, progress, skip_zeros)
                index.wait_until_linked(progress)
            if isinstance(index, EmbeddedIndex):
                calibrate_again(index.generation)
            result["count"] = index.describe()["count"]
        except BaseException:
            # An index without items would bind the next import to the settings of this one.
            if is_new and name in indexes.names() and not indexes.get(name).describe()["count"]:
                indexes.delete(name)
            raise
        finally:
            indexes.close()
        counts = {"zero rows left out": result["left_out"], "items replaced": result["replaced"]}
        notes = "".join(f"; {count:,} {what}" for what, count in counts.items() if count)
        typer.echo(f"{name}: {result['count']:,} items in the space {spec.space_id}{notes}", err=as_json)
    if as_json:
        typer.echo(json.dumps(result, indent=1))


def resolve_rows(
    source: "Source",
    fields: dict[str, Any],
    encoders: LazyEncoders,
    registry: "Registry",
    prompt_name: str | None = None,
) -> "tuple[IndexSpec, Artifact, TextEncoder | None]":
    """Return the settings of an index for a source's rows, its chain, and the encoder of the rows if they are texts.

    Args:
        source: vectors or texts.
        fields: fields of the index's request.
        encoders: encoders by name.
        registry: chains.
        prompt_name: prompt of the texts; None for the prompt for documents.
    """
    from lathe.service.chains.names import RAW
    from lathe.service.chains.resolve import ChainResolver
    from lathe.service.index.spec_resolver import SpecResolver
    from lathe.training.encoder.text_encoder import with_document_prompt

    width, encoder = source.detect_kind(), fields.get("encoder")
    specs = SpecResolver(
        registry,
        ChainResolver(registry),
        encoders.load,
        lambda: [encoders.load(spec.name) for spec in encoders.settings.specs],
    )
    resolved = {
        "encoder": encoders.load(encoder).name if width is None or encoder else None,
        "width": width if fields["chain"] == RAW and encoder is None else None,
    }
    spec, artifact = specs.resolve_new(build_request(IndexRequest, fields | resolved))
    return spec, artifact, with_document_prompt(encoders.load(spec.encoder), prompt_name) if width is None else None


def _find_metric(source: "Source") -> "Metric":
    from lathe.training.sources.faiss_indexes import read_faiss_metric

    files = [Path(file) for file in source.files if file.endswith(".faiss")]
    return (read_faiss_metric(files[0]) if len(files) == 1 else None) or "cosine"


def encode_texts(encoder: "TextEncoder | None", texts: list[str]) -> Any:
    """Return the vectors of texts. Raise `BadValueError` without an encoder."""
    if encoder is None:
        raise BadValueError("texts need an encoder: name it with --encoder", param="encoder")
    return encoder.encode(texts).vectors


def _require_gates(cost: "ImportCost", gates: Mapping[str, float]) -> None:
    unknown = set(gates) - set(cost.quality)
    if unknown:
        raise BadValueError(f"there is no gate {', '.join(sorted(unknown))}; there are {', '.join(cost.quality)}")
    failed = [f"{key} {gates[key]} (it is {cost.quality[key]})" for key in list_failed_gates(gates, cost.quality)]
    if failed:
        raise BadValueError(f"nothing was written: on these vectors the chain does not reach {', '.join(failed)}")


def _format_cost(cost: "ImportCost", title: str) -> str:
    rows = [[name, format_number(cost.quality[key], ".3f")] for key, name in MEASURE_NAMES.items()]
    for name, sizes in (("bytes per vector", cost.bytes_per_vector), ("bytes of the graph", cost.graph_bytes)):
        rows.append([name, f"{sizes['before']:,}", f"→ {sizes['after']:,}"])
    table = align_columns([["", "", ""], *rows], left=(0, 2)).strip("\n")
    warning = f"\nwarning: {cost.warning}" if cost.warning else ""
    return f"{title}, measured on {cost.sampled:,} of {cost.rows:,} rows\n{table}{warning}"
