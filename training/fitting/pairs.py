"""Targets of a fit on pairs: what each row of the source is in another encoder's space."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.encoder.encoder import Encoder
from training.errors import FitError
from training.fitting.encoding import EncodedSource, encode_source
from training.fitting.engines import Engine
from training.fitting.keys import place_key
from training.sources.source import Source, open_source
from training.workspace import claimed_folder
from transforms.chain import Chain
from transforms.progress import Progress
from transforms.vectors import Vectors


def require_pairs_or_none(chain: Chain, targets: str | None, encoder: object | None) -> None:
    """Raise `FitError` unless targets are given, in one way, if and only if a step is fitted on them."""
    if targets is not None and encoder is not None:
        raise FitError("name a source of target vectors or a target encoder, not both")
    paired = [step.kind for step in chain.transforms if step.paired]
    given = targets is not None or encoder is not None
    if paired and not given:
        raise FitError(f"{paired[0]} is fitted on pairs: name the target encoder, or a source of target vectors")
    if given and not paired:
        raise FitError("no step is fitted on targets; procrustes and low_rank_affine are")


@contextmanager
def encoded_targets(
    written: str | None,
    source: Source,
    encoder: Encoder | None,
    encoded: EncodedSource,
    workspace: Path,
    on_progress: Progress,
    engine: Engine,
) -> Iterator[Vectors | None]:
    """The target of each row of an encoded source, `(n, k)`; None where there are none.

    A context: the vectors are there while it lasts.

    Args:
        written: a source of vectors, as `open_source` reads it; None takes the source's own texts.
        source: what is fitted on.
        encoder: of the targets; None for vectors.
        encoded: the source as vectors.
        workspace: where vectors go meanwhile.
        on_progress: told a fraction and a sentence.
        engine: who encodes.

    Raises:
        SourceError: if the targets cannot be read.
        FitError: if they do not correspond row by row.
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
    with claimed_folder(workspace, f"{place_key(targets, encoder)[:30]}-t") as folder:
        found = encode_source(targets, encoder, folder, on_progress, engine)
        have, wanted = found.vectors.shape[0], encoded.vectors.shape[0]
        if have != wanted:
            raise FitError(
                f"the targets have {have} rows and the source {wanted}: they must be pairs "
                "(blank texts count for nothing)"
            )
        yield found.vectors
