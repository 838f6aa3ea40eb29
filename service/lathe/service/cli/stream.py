"""`lathe embed` and `lathe reduce`: their options.

The module `streaming` does the work.
"""

from pathlib import Path
from typing import Annotated

from lathe.service.cli.options import SOURCE, AddressOption, EngineOption, WorkersOption, flag

SourceOption = Annotated[str, flag("--source", SOURCE)]
OutOption = Annotated[Path, flag("--out", "FILE.jsonl, .parquet or .npy; rows keep their order and other fields.")]
SizeOption = Annotated[int | None, flag("--dimensions", "Fewer dimensions, if the chain is nested.", min=1)]


def embed(
    source: SourceOption,
    out: OutOption,
    chain: Annotated[str | None, flag("--chain", "NAME or NAME@VERSION; none gives raw vectors.")] = None,
    encoder: Annotated[str | None, flag("--encoder", "A configured encoder, or a model's folder or hub id.")] = None,
    dimensions: SizeOption = None,
    prompt: Annotated[str | None, flag("--prompt-name", "One of the encoder's prompts.")] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
) -> None:
    """Embed the texts of a source into a file.

    Vectors are stored in the state folder until all are there. If stopped, the same command continues from them.
    """
    from lathe.service.cli.streaming import embed_source

    embed_source(source, out, chain, encoder, dimensions, prompt, engine, address, workers)


def reduce(
    source: SourceOption,
    out: OutOption,
    chain: Annotated[str, flag("--chain", "NAME or NAME@VERSION.")],
    dimensions: SizeOption = None,
) -> None:
    """Transform the vectors of a source by a chain into a file."""
    from lathe.service.cli.streaming import reduce_source

    reduce_source(source, out, chain, dimensions)
