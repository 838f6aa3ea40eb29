"""Embedding and reduction of sources into files, batch by batch, for `lathe embed` and `lathe reduce`."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from lathe.service.chains.resolve import ChainResolver, Target
from lathe.service.cli.options import ProgressBar, load_encoder, load_state, open_chains, open_engine
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import NotFiniteError, SourceError
from lathe.training.fitting.encoding import encode_source, format_progress
from lathe.training.sources.parquet import TableRecords
from lathe.training.sources.rows import Record, RowBatch, find_long_integer
from lathe.training.sources.source import Source, open_source
from lathe.training.sources.writers import Writer, get_staging_path, open_writer
from lathe.training.workspace import claim_workspace_folder, digest
from lathe.transforms.vectors import Vectors


def embed_source(
    source: str,
    out: Path,
    chain: str | None,
    encoder: str | None,
    dimensions: int | None,
    prompt: str | None,
    engine: str,
    address: str | None,
    workers: int | None,
) -> None:
    """Embed the texts of a source, write them to a file with their vectors, and print a summary.

    Parameters are the options of `lathe embed`.

    The whole source is first encoded into a working folder, from which a run that was stopped continues; then the file
    is written.

    Raises:
        SourceError: if the source holds vectors, or its files change meanwhile.
    """
    opened = open_source(source)
    if opened.kind() != "texts":
        raise SourceError(f"{source} holds vectors: use lathe reduce")
    settings, home = load_state()
    stopped = get_staging_path(out).exists()
    with open_writer(out) as writer:  # what the file cannot be is found before what takes long
        loaded = load_encoder(settings, encoder)
        loaded.prompt(prompt)
        target = ChainResolver(open_chains(write=False)).resolve_for_encoder(loaded, chain, dimensions)
        if prompt is not None:  # workers load the encoder by its spec, and use its default prompt
            spec = replace(loaded.spec, default_prompt_name=prompt)
            loaded = open_encoder(spec, loaded.device, settings.vector_stores)

        content, key = opened.content_key(None), digest(opened.workspace_key(loaded.vectors_key), prompt)[:32]
        with claim_workspace_folder(home.vectors, key) as folder:
            if any(folder.iterdir()):
                typer.echo("continuing from what an earlier run encoded", err=True)
            elif stopped:
                typer.echo("starting over: the source or the encoder is not that of the run that stopped", err=True)
            with open_engine(engine, address, workers, settings) as opened_engine, ProgressBar() as progress:
                vectors = encode_source(opened, loaded, folder, progress, opened_engine).vectors
            encoded = _EncodedRows(vectors, loaded)
            _write_rows(opened, writer, out, target, lambda batch: target.apply(encoded.take(batch)))
            if opened.content_key(None) != content:
                raise SourceError(CHANGED)


CHANGED = "the source changed while it was encoded: run the command again"
"""Message if the rows that were encoded are not those that are written."""


class _EncodedRows:
    """The vectors of a source's texts, encoded before, which are taken batch by batch in order.

    Args:
        vectors: `(n, d)` of all texts that are not blank.
        encoder: encodes the blank texts.
    """

    def __init__(self, vectors: Vectors, encoder: TextEncoder) -> None:
        self.vectors, self.encoder, self.taken = vectors, encoder, 0

    def take(self, batch: RowBatch) -> NDArray[np.float32]:
        """Return the vectors `(n, d)` of the source's next batch. Blank texts have no vector and are encoded now."""
        texts = list(batch.values)
        blank = np.array([not text.strip() for text in texts])
        count = len(texts) - int(blank.sum())
        if self.taken + count > self.vectors.shape[0]:
            raise SourceError(CHANGED)
        vectors = np.empty((len(texts), self.vectors.shape[1]), np.float32)
        vectors[~blank] = self.vectors[self.taken : self.taken + count]
        if blank.any():
            try:
                vectors[blank] = self.encoder.encode([text for text in texts if not text.strip()]).vectors
            except NotFiniteError as error:
                raise NotFiniteError(error.reason, int(np.flatnonzero(blank)[error.position or 0])) from None
        self.taken += count
        return vectors


def reduce_source(source: str, out: Path, chain: str, dimensions: int | None) -> None:
    """Transform the vectors of a source by a chain, write them to a file, and print a summary.

    Parameters are the options of `lathe reduce`.

    Raises:
        SourceError: if the source holds texts.
    """
    opened = open_source(source)
    dimensions_in = opened.detect_kind()
    if dimensions_in is None:
        raise SourceError(f"{source} holds texts: use lathe embed")
    target = ChainResolver(open_chains(write=False)).resolve_for_vectors(dimensions_in, chain, dimensions)
    with open_writer(out) as writer:
        _write_rows(opened, writer, out, target, lambda batch: target.apply(np.asarray(batch.values, dtype=np.float32)))


def _write_rows(
    source: Source, writer: Writer, out: Path, target: Target, transform: Callable[[RowBatch], NDArray[np.float32]]
) -> None:
    """Write each row of a source with its transformed vector to a file. Show progress, and print a summary."""
    total, written, started = source.count(), 0, time.monotonic()
    with ProgressBar() as progress:
        for batch in source.batches():
            try:
                vectors = transform(batch)
            except NotFiniteError as error:
                raise error.at(f"row {written + (error.position or 0) + 1:,} of {source.name}") from None
            writer.write(_build_records(batch, source.field), target.encode(vectors, as_codes=True))
            written += len(batch)
            progress(written / max(total, 1), format_progress(written, total, written, time.monotonic() - started))
    typer.echo(f"{out}: {written:,} × {target.dimensions} through {target.chain}, space {target.space_id}", err=True)


def _build_records(batch: RowBatch, field: str) -> Sequence[Record]:
    """Return the fields to write next to each vector of a batch: the source's row without its vector.

    Raises:
        SourceError: if a field holds an integer beyond 64 bits.
    """
    are_texts = isinstance(batch.values, list)
    if isinstance(batch.records, TableRecords):
        return batch.records if are_texts else batch.records.without(field)
    for record in batch.records:
        for name, value in record.items():
            if name != field and (number := find_long_integer(value)) is not None:
                raise SourceError(f"the field {name!r} holds {number}, an integer beyond 64 bits: write it as text")
    if are_texts:
        return batch.records or [{"text": text} for text in batch.values]
    return [{k: v for k, v in record.items() if k != field} for record in batch.records] or [{} for _ in batch.values]
