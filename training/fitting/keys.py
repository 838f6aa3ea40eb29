"""Keys that identify a source and the workspace folder of its vectors."""

from training.digests import digest
from training.encoder.encoder import Encoder
from training.sources.file_keys import file_key
from training.sources.source import Source


def source_key(source: Source, encoder: Encoder | None) -> str:
    """Return a key of the files' content, the field and the encoder; a run resumes at a row only if it is the same."""
    files = [file_key(file) for file in source.files]
    return digest(source.name, source.field, files, encoder.fingerprint if encoder else None)


def place_key(source: Source, encoder: Encoder | None) -> str:
    """Return the key of the workspace folder for a source's vectors: location of the files, field and encoder.

    A folder keeps its key when files are added or removed. A single file is identified by its content, wherever a job
    put it.
    """
    place = source.place if source.is_folder else file_key(source.files[0])
    return digest(place, source.field, encoder.fingerprint if encoder else None)
