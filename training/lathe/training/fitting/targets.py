"""Targets of a fit on pairs: the vectors of the source's rows in another encoder's space."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import FitError
from lathe.training.fitting.encoding import EncodedSource, encode_source
from lathe.training.fitting.engines import FitEngine
from lathe.training.sources.source import Source, open_source
from lathe.training.workspace import claim_workspace_folder
from lathe.transforms.progress import Progress
from lathe.transforms.vectors import Vectors


@contextmanager
def encode_targets(
    written: str | None,
    source: Source,
    encoder: TextEncoder | None,
    encoded: EncodedSource,
    workspace: Path,
    on_progress: Progress,
    engine: FitEngine,
) -> Iterator[Vectors | None]:
    """Encode or read the target vectors of an encoded source, and yield them, one for each row, `(n, k)`. Without
    targets, yield None.

    The vectors exist only within the block; see `claim_workspace_folder`.

    Args:
        written: a source of target vectors, as `open_source` reads it; None encodes the source's own texts.
        source: the source that is fitted on.
        encoder: target encoder; None for target vectors.
        encoded: the source as vectors.
        workspace: folder for workspace folders.
        on_progress: called with progress in [0, 1] and a message.
        engine: encodes the targets.

    Raises:
        SourceError: if the targets cannot be read.
        FitError: if the targets are texts without an encoder, differ in number from the rows, or the source has files
            left out.
    """
    if written is None and encoder is None:
        yield None
        return
    if written is not None and encoded.left_out:
        left_out = ", ".join(encoded.left_out)
        raise FitError(f"{left_out} of the source was left out: its rows and the targets are no pairs")
    targets = source if written is None else open_source(written)
    if encoder is None and targets.kind() == "texts":
        raise FitError(f"the targets {targets.name} are texts; they must be vectors, or name a target encoder")
    with claim_workspace_folder(
        workspace, f"{targets.workspace_key(encoder.vectors_key if encoder else None)[:30]}-t"
    ) as folder:
        found = encode_source(targets, encoder, folder, on_progress, engine)
        have, wanted = found.vectors.shape[0], encoded.vectors.shape[0]
        if have != wanted:
            raise FitError(
                f"the targets have {have} rows and the source {wanted}: they must be pairs "
                "(blank texts count for nothing)"
            )
        yield found.vectors
