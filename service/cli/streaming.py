"""Files in, files out, a batch at a time: what `lathe embed` and `lathe reduce` do."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import typer
from numpy.typing import NDArray

from service.cli.engines import open_engine
from service.cli.options import ProgressBar, load_encoder, registry_with_places, state
from service.targets import Target, Targets
from training.digests import digest
from training.encoder.encoder import Encoder
from training.errors import SourceError
from training.fitting.encoding import encode_source, format_progress
from training.sources.kinds import Batch
from training.sources.raw import Record
from training.sources.source import Source, open_source
from training.sources.writers import open_writer
from training.workspace import claim_workspace_folder
from transforms.vectors import Vectors


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
    """Embed the texts of a source into a file; the parameters are the options of `lathe embed`."""
    opened = open_source(source)
    if opened.kind() != "texts":
        raise SourceError(f"{source} holds vectors; lathe reduce takes those through a chain")
    settings, home = state()
    loaded = load_encoder(settings, encoder)
    loaded.prompt(prompt)
    target = Targets(*registry_with_places(write=False)).of_encoder(loaded, chain, dimensions)

    def vectors_of(batch: Batch) -> NDArray[np.float32]:
        return target.apply(loaded.encode(list(batch.values), prompt_name=prompt).vectors)

    if engine == "local":
        write_all(opened, out, target, vectors_of)
        return
    if prompt is not None:  # workers load the encoder as it is described, and know of no other prompt
        loaded = Encoder(replace(loaded.spec, default_prompt_name=prompt), loaded.device)
    with claim_workspace_folder(home.vectors, digest(opened.workspace_key(loaded.fingerprint), prompt)[:32]) as folder:
        with open_engine(engine, address, workers, settings) as by, ProgressBar() as progress:
            stored = Stored(encode_source(opened, loaded, folder, progress, by).vectors, loaded)
        write_all(opened, out, target, lambda batch: target.apply(stored.of(batch)))


class Stored:
    """An encoded source's vectors, in the order of its batches.

    Args:
        vectors: `(n, d)`, blank texts left out.
        encoder: of the blank ones.
    """

    def __init__(self, vectors: Vectors, encoder: Encoder) -> None:
        self.vectors, self.encoder, self.taken = vectors, encoder, 0

    def of(self, batch: Batch) -> NDArray[np.float32]:
        """The vectors of the next batch."""
        texts = list(batch.values)
        blank = np.array([not text.strip() for text in texts])
        kept = len(texts) - int(blank.sum())
        found = np.empty((len(texts), self.vectors.shape[1]), np.float32)
        found[~blank] = self.vectors[self.taken : self.taken + kept]
        if blank.any():
            found[blank] = self.encoder.encode([text for text in texts if not text.strip()]).vectors
        self.taken += kept
        return found


def reduce_source(source: str, out: Path, chain: str, dimensions: int | None) -> None:
    """Take the vectors of a source through a chain into a file; the parameters are the options of `lathe reduce`."""
    opened = open_source(source)
    width = opened.width()
    if width is None:
        raise SourceError(f"{source} holds no vectors; lathe embed takes texts")
    target = Targets(*registry_with_places(write=False)).of_vectors(width, chain, dimensions)

    def vectors_of(batch: Batch) -> NDArray[np.float32]:
        return target.apply(np.asarray(batch.values, dtype=np.float32))

    write_all(opened, out, target, vectors_of)


def write_all(source: Source, out: Path, target: Target, vectors_of: Callable[[Batch], NDArray[np.float32]]) -> None:
    """Stream a source into a file, with progress, and say what was written."""
    total, seen, begun = source.count(), 0, time.monotonic()
    with ProgressBar() as progress, open_writer(out) as writer:
        for batch in source.batches():
            writer.write(records_of(batch, source.field), target.codes(vectors_of(batch)))
            seen += len(batch)
            progress(seen / max(total, 1), format_progress(seen, total, seen, time.monotonic() - begun))
    typer.echo(f"{out}: {seen:,} × {target.dimensions} through {target.chain}, space {target.space_id}", err=True)


def records_of(batch: Batch, field: str) -> list[Record]:
    """What a row says beside its vector: all its fields, but not the vector it came with."""
    if not isinstance(batch.values, list):
        return [{k: v for k, v in record.items() if k != field} for record in batch.records] or [
            {} for _ in batch.values
        ]
    return batch.records or [{"text": text} for text in batch.values]
