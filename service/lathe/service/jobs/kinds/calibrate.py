"""Calibration of an index as a job: encodes queries, which the index's owner then searches for.

The owner alone makes the model: see `lathe.service.index.embedded.calibration`.
"""

import time
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints

from lathe.service.errors import BadValueError, ConflictError, UnavailableError
from lathe.service.home import Home
from lathe.service.index.embedded.calibration import MAX_LOG, NEXT, REFUSED, Inputs, spread
from lathe.service.index.embedded.delegation import OWNER_SECONDS, POLL_SECONDS
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.reducer import Vectors
from lathe.service.index.spec import CalibrateRequest, IndexSpec
from lathe.service.jobs.requests import SourcedJob
from lathe.service.settings import Settings
from lathe.training.encoder.text_encoder import TextEncoder, encode_queries
from lathe.training.fitting.pairs import read_pairs
from lathe.training.settings import NAME_PATTERN
from lathe.training.sources.source import open_source
from lathe.transforms.files import parse_json_object, read_json_file
from lathe.transforms.progress import Progress


class CalibrateJob(SourcedJob[CalibrateRequest]):
    """What an index is calibrated with."""

    index: Annotated[str, StringConstraints(pattern=NAME_PATTERN)]

    def run(self, folder: Path, settings: Settings, on_progress: Progress) -> dict[str, Any]:
        """Encode the queries, wait until the index's owner has calibrated the index, and return the facts.

        Raises:
            ConflictError: if the owner refuses, or the index changes meanwhile.
            UnavailableError: if no owner answers within `OWNER_SECONDS`.
        """
        root = Home(settings.home).indexes / self.index
        record = IndexRecord(root / "record.db", read_only=True)
        spec = record.spec
        encoder = self.load_encoders(settings).get("encoder")
        if encoder is not None and encoder.fingerprint != spec.encoder_fingerprint:
            raise ConflictError(f"the index {self.index} has vectors of another encoder than {encoder.name} is now")

        inputs = gather_inputs(self.locate_inputs(folder), folder.name, spec)
        on_progress(0.1, "encoding the queries")
        encode_inputs(inputs, encoder)
        generation = root / f"graph-{spec.generation}"
        inputs.save(generation)
        return _wait_for_owner(record, spec, generation, inputs.id, on_progress)


def gather_inputs(request: CalibrateRequest, job: str, spec: IndexSpec) -> Inputs:
    """Read the queries and judgements of a request whose data are in files. Texts remain to be encoded.

    Raises:
        BadValueError: if vectors of queries have other dimensions than those of the index.
    """
    inputs = Inputs(job, request.base_rate)
    if request.queries is not None:
        queries = open_source(request.queries.location).read_all()
        if isinstance(queries, list):
            texts = list(dict.fromkeys(queries))
            inputs.texts = [texts[row] for row in spread(len(texts), MAX_LOG)]
        else:
            inputs.log = queries[spread(len(queries), MAX_LOG)]
            if inputs.log.shape[1] != spec.width:
                raise BadValueError(
                    f"the queries have {inputs.log.shape[1]} dimensions, the index takes {spec.width}", param="queries"
                )
    if request.pairs is not None:
        inputs.judged = read_pairs(request.pairs).by_query
    return inputs


def encode_inputs(inputs: Inputs, encoder: TextEncoder | None) -> None:
    """Set the vectors of the texts of unjudged and judged queries. Without texts, nothing is encoded.

    Raises:
        BadValueError: if there are texts and no encoder.
    """
    if (inputs.texts or inputs.judged) and encoder is None:
        raise BadValueError(
            "queries are texts, and the vectors have no encoder here: give vectors of queries", param="queries"
        )
    if encoder is None:
        return

    def encode(texts: list[str]) -> Vectors | None:
        return encode_queries(encoder, texts) if texts else None

    if inputs.texts is not None:
        inputs.log = encode(inputs.texts)
    inputs.judged_vectors = encode([*inputs.judged])


def _wait_for_owner(
    record: IndexRecord, spec: IndexSpec, generation: Path, job: str, on_progress: Progress
) -> dict[str, Any]:
    deadline = time.monotonic() + OWNER_SECONDS
    while (generation / NEXT).exists():
        if time.monotonic() > deadline:
            raise UnavailableError("no server that owns the index calibrates it: start it and try again")
        on_progress(0.5, "the index is being calibrated")
        time.sleep(POLL_SECONDS)
    stored = record.read_calibration(spec.space_id)
    record.close()
    if stored is not None and (facts := parse_json_object(stored[0])["facts"])["id"] == job:
        return dict(facts)
    if (generation / REFUSED).exists():
        raise ConflictError(str(read_json_file(generation / REFUSED)["error"]))
    raise ConflictError("the index was deleted or reindexed meanwhile; calibrate it again")
