"""Checkup of an index as a job: reads a sample of its rows, encodes texts again, and lets the index's owner search."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import StringConstraints

from lathe.service.checkup.own_index import IndexStore
from lathe.service.errors import BadValueError, ConflictError
from lathe.service.home import Home
from lathe.service.index.embedded.watch import CHECKUP
from lathe.service.index.spec import CheckupRequest
from lathe.service.jobs.requests import SourcedJob
from lathe.service.settings import Settings
from lathe.training.checkup.checkup import check_up
from lathe.training.checkup.spaces import StoreEncoder
from lathe.training.settings import NAME_PATTERN
from lathe.training.sources.source import open_source
from lathe.transforms.files import replace_synced
from lathe.transforms.progress import Progress


class CheckupJob(SourcedJob[CheckupRequest]):
    """What an index is checked with."""

    index: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Check the index, keep the result in its folder, and return it.

        Raises:
            ConflictError: if the index stores no originals, has vectors of another encoder, or is deleted meanwhile.
            EmptyError: if the index has no items.
            EncoderError: if the queries have other dimensions than the rows.
            UnavailableError: if no server that owns the index searches it.
        """
        root = Home(settings.home).indexes / self.index
        self._require_folder(root)
        store = IndexStore(self.index, root, folder, settings)
        encoder = None
        if self.encoder is not None:
            on_progress(0.0, "loading the encoder")
            loaded = self.load_encoders(settings)["encoder"]
            if loaded.fingerprint != store.spec.encoder_fingerprint:
                raise ConflictError(f"the index {self.index} has vectors of another encoder than {loaded.name} is now")
            encoder = StoreEncoder(loaded, np.asarray, np.asarray)

        queries, source = None, self.locate_inputs(folder).queries
        if source is not None:
            queries = read_queries(source.location, encoder)
        result = check_up(store, encoder, queries, on_progress).to_json()
        result["checked_at"] = datetime.now(UTC).isoformat()
        store.record.close()
        self._require_folder(root)
        replace_synced(root / CHECKUP, json.dumps(result).encode())
        return result

    def _require_folder(self, root: Path) -> None:
        if not root.is_dir():
            raise ConflictError(f"the index {self.index} was deleted meanwhile")


def read_queries(source: str, encoder: StoreEncoder | None) -> np.ndarray:
    """Return the vectors `(q, d)` of a source of queries, which are encoded if they are texts.

    Raises:
        BadValueError: if they are texts and there is no encoder.
        SourceError: if the source cannot be read.
    """
    values = open_source(source).read_all()
    if not isinstance(values, list):
        return values
    if encoder is None:
        raise BadValueError(
            f"{source} holds texts, and their encoder is not known: give vectors, or --encoder for a file or a store",
            param="queries",
        )
    return encoder.ask(values)
