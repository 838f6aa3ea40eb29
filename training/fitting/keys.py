"""What identifies a source and the work on it."""

from training.digests import digest
from training.encoder.encoder import Encoder
from training.sources.file_keys import file_key
from training.sources.source import Source


def source_key(source: Source, encoder: Encoder | None) -> str:
    """What must be the same for a stopped run to go on at a row: files, field, encoder."""
    files = [file_key(file) for file in source.files]
    return digest(source.name, source.field, files, encoder.fingerprint if encoder else None)


def place_key(source: Source, encoder: Encoder | None) -> str:
    """What must be the same for a stopped run's vectors to be looked at: where the files lie, field, encoder.

    A folder stays itself when files join it or leave it; a single file is known by what is in it,
    wherever a job put it.
    """
    place = source.place if source.is_folder else file_key(source.files[0])
    return digest(place, source.field, encoder.fingerprint if encoder else None)
