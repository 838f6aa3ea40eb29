"""Calibration of a generation: the model that gives each hit of a search its probability, and what it was made from.

A job writes inputs to the folder `calibration.next` of the generation. The index's owner calibrates with its own
search, stores the calibration in the record and deletes the folder. If that fails, it writes the reason to
`calibration.refused.json`.
"""

import json
import logging
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from lathe.service.errors import ConflictError, ServiceError
from lathe.service.index.embedded.delegation import POLL_SECONDS
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.probabilities import Calibration, Facts
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.embedded.rows import Labels
from lathe.service.index.items import parse_metadata
from lathe.service.index.query import Query
from lathe.service.index.reducer import Vectors
from lathe.transforms.errors import ArtifactError, TransformError
from lathe.transforms.files import make_folder, parse_json_object, read_json_file, replace_synced
from lathe.transforms.relevance import MIN_HITS, RelevanceModel, Searches, evaluate_probabilities
from lathe.transforms.relevance.model import MAX_REFERENCES

NEXT, REFUSED = "calibration.next", "calibration.refused.json"
"""Names of the folder of the next calibration's inputs, and of the file with the reason of a refusal."""

INPUTS, VECTORS = "inputs.json", "vectors.f32"
"""Names of the files with the inputs."""

MIN_ROWS = 60
"""Minimum number of rows: half of them search for the others, and 30 searches are needed."""

MAX_ROWS = 20_000
"""Maximum number of evenly spaced rows from which the model is made."""

MAX_SEARCHES = 300
"""Maximum number of unjudged searches, by which the scales of the features are known to 4 %."""

MIN_LOG = 130
"""Minimum number of unjudged queries: 100 measure hubs, and 30 search."""

MIN_JUDGED = 60
"""Minimum number of judged queries: half of them fit the weights, and 30 are needed to report on."""

MAX_LOG = MAX_REFERENCES + MAX_SEARCHES
"""Maximum number of unjudged queries that are used and stored."""

UNREADABLE = (sqlite3.Error, ArtifactError, LookupError, TypeError, ValueError)
"""What reading a damaged calibration raises."""

HeldOut = tuple[Searches, NDArray[np.bool_]]
"""Judged searches that a model was not fitted on, and whether the first hit of each is right."""

log = logging.getLogger(__name__)

_FACTS = TypeAdapter(Facts)


@dataclass
class Inputs:
    """What an index is calibrated with. Without queries, rows search for rows.

    Attributes:
        id: id of the job, or of the generation.
        base_rate: assumed share of queries that have an answer.
        texts: unjudged queries; None for vectors, or without a log.
        judged: ids or texts of the relevant items, by judged query.
        log: original vectors of the unjudged queries `(m, d)`; None without a log.
        judged_vectors: original vectors of the judged queries `(p, d)`.
    """

    id: str
    base_rate: float = 0.5
    texts: list[str] | None = None
    judged: dict[str, list[str]] = field(default_factory=dict)
    log: Vectors | None = None
    judged_vectors: Vectors | None = None

    def describe(self) -> dict[str, Any]:
        """Return what `load` needs besides the vectors, as a dict that can be serialized as JSON."""
        content = {"id": self.id, "base_rate": self.base_rate, "texts": self.texts, "judged": self.judged}
        return content | {"log": None if self.log is None else len(self.log)}

    @property
    def vectors(self) -> bytes:
        """Vectors of the unjudged and of the judged queries in float32, row after row."""
        given = [vectors for vectors in (self.log, self.judged_vectors) if vectors is not None]
        return b"".join(vectors.astype(np.float32).tobytes() for vectors in given)

    @classmethod
    def load(cls, described: dict[str, Any], vectors: bytes) -> Self:
        """Rebuild inputs from the dict of `describe` and the bytes of `vectors`."""
        logged, judged = described["log"] or 0, len(described["judged"])
        rows = np.frombuffer(vectors, np.float32).copy().reshape(max(logged + judged, 1), -1)
        parts = {"log": rows[:logged] if logged else None, "judged_vectors": rows[logged:] if judged else None}
        return cls(**described | parts)

    def save(self, folder: Path) -> None:
        """Write the inputs for the owner of a generation to `calibration.next` in the generation's folder.

        Raises:
            ConflictError: if the owner has not yet read others, or there is no such generation.
        """
        if not folder.is_dir():
            raise ConflictError("the index was deleted or reindexed meanwhile")
        staging = folder / f".{NEXT}.{self.id}"
        make_folder(staging)
        replace_synced(staging / INPUTS, json.dumps(self.describe()).encode())
        replace_synced(staging / VECTORS, self.vectors)
        try:
            staging.rename(folder / NEXT)
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            raise ConflictError("the index is being calibrated already") from None


def read_inputs(record: IndexRecord, space_id: str) -> Inputs | None:
    """Return what an index was calibrated with in an embedding space, or None if it was not, or it is damaged."""
    try:
        stored = record.read_calibration(space_id)
        return None if stored is None else Inputs.load(parse_json_object(stored[0])["inputs"], stored[2])
    except UNREADABLE:
        return None


def load_calibration(generation: Generation) -> Calibration | None:
    """Return the calibration of a generation's embedding space in the record, or None if there is none."""
    try:
        if (stored := generation.record.read_calibration(generation.spec.space_id)) is None:
            return None
        content = parse_json_object(stored[0])
        model = RelevanceModel.from_bytes(stored[1], content["model"])
        if model.background.dimensions != generation.spec.dimensions:
            raise ArtifactError(f"the relevance model is of {model.background.dimensions} dimensions")
        facts = _FACTS.validate_python(content["facts"])
        return Calibration(generation.rows, generation.vector_format, model, facts)
    except UNREADABLE as error:
        generation.notes.append(f"the calibration cannot be read ({error}): calibrate the index again")
        return None


def calibrate_next(generation: Generation) -> None:
    """Calibrate a generation with the inputs in `calibration.next`, if there are any, and store the calibration.

    What goes wrong is written to `calibration.refused.json`, and the generation keeps its calibration.
    """
    following, refused = generation.folder / NEXT, generation.folder / REFUSED
    if not following.exists():
        return
    refused.unlink(missing_ok=True)
    try:
        inputs = Inputs.load(read_json_file(following / INPUTS), (following / VECTORS).read_bytes())
        calibration = calibrate(generation, inputs)
        model = calibration.model
        content = {"inputs": inputs.describe(), "model": model.describe(), "facts": asdict(calibration.facts)}
        generation.record.write_calibration(generation.spec.space_id, content, model.payload, inputs.vectors)
        generation.use_calibration(calibration)
    except Exception as error:
        known = isinstance(error, ServiceError | TransformError)
        if not known:
            log.exception("a generation in %s cannot be calibrated", generation.folder)
        reason = str(error) if known else f"{type(error).__name__} in the index's owner"
        replace_synced(refused, json.dumps({"error": reason}).encode())
    finally:
        shutil.rmtree(following, ignore_errors=True)


def calibrate_again(generation: Generation) -> None:
    """Let a generation be calibrated with the inputs of its calibration or, without one, with its rows, and wait.

    The index's maintenance thread does it. Too few rows, or another metric than cosine, change nothing.
    """
    inputs = read_inputs(generation.record, generation.spec.space_id) or Inputs("import")
    with suppress(ConflictError):  # a job has asked for it just now
        inputs.save(generation.folder)
    while (generation.folder / NEXT).exists():
        time.sleep(POLL_SECONDS)


def calibrate(generation: Generation, inputs: Inputs) -> Calibration:
    """Make the model of a generation from a sample of its rows and the inputs, by searches of the generation.

    Raises:
        ConflictError: if there are too few rows or queries, or the metric is not cosine.
        InputError: if the queries cannot be used, or all judged first hits are right or all are wrong.
    """
    begun = time.monotonic()
    model, _, held_out = fit_model(generation, inputs)
    figures, sentence = evaluate_held_out(inputs, held_out, model.predict_proba)
    facts = Facts(
        id=inputs.id,
        space_id=generation.spec.space_id,
        kind=model.kind,
        base_rate=None if inputs.judged else inputs.base_rate,
        queries=0 if inputs.log is None else len(inputs.log),
        rows=generation.rows.count - generation.rows.dead,
        last_label=generation.last_label,
        seconds=round(time.monotonic() - begun, 3),
        figures=figures,
        sentence=sentence,
    )
    return Calibration(generation.rows, generation.vector_format, model, facts)


def fit_model(
    generation: Generation, inputs: Inputs, hits: int = MIN_HITS
) -> tuple[RelevanceModel, Searches, HeldOut | None]:
    """Fit a model on searches of a generation that have so many hits.

    Returns:
        The model, the searches that it was fitted on last, which are judged ones if there are any, and the judged
        searches that were held out with whether each first hit is right; None without judgements.

    Raises:
        ConflictError: if there are too few rows or queries, or the metric is not cosine.
        InputError: if the queries cannot be used.
    """
    if generation.spec.metric != "cosine":
        raise ConflictError(f"only an index with the metric cosine can be calibrated, not {generation.spec.metric}")
    view = generation.rows.take_view()
    alive = np.flatnonzero(view.alive)
    if len(alive) < MIN_ROWS:
        raise ConflictError(f"an index needs at least {MIN_ROWS} items to be calibrated, it has {len(alive)}")
    if inputs.log is not None and len(inputs.log) < MIN_LOG:
        raise ConflictError(f"at least {MIN_LOG} different queries are needed, got {len(inputs.log)}")
    if 0 < len(inputs.judged) < MIN_JUDGED:
        raise ConflictError(f"at least {MIN_JUDGED} judged queries are needed, got {len(inputs.judged)}")

    sample = alive[spread(len(alive), MAX_ROWS)]
    vectors = generation.vector_format.decode(view.compact[sample])
    own = None
    if inputs.log is None:
        searching = np.zeros(len(sample), np.bool_)
        searching[spread(len(sample), min(MAX_SEARCHES, len(sample) // 2))] = True
        model = RelevanceModel.from_rows(vectors[~searching], base_rate=inputs.base_rate)
        queries, own = vectors[searching], view.labels[sample[searching]]
    else:
        reduced = generation.reducer.reduce_queries(inputs.log)
        searching = np.zeros(len(reduced), np.bool_)
        searching[spread(len(reduced), min(MAX_SEARCHES, max(MIN_LOG - 100, len(reduced) // 5)))] = True
        model = RelevanceModel.from_rows(vectors, reduced[~searching], inputs.base_rate)
        queries = reduced[searching]
    searches, _ = _search(generation, model, queries, hits, own)
    model.fit(searches)
    if not inputs.judged:
        return model, searches, None

    assert inputs.judged_vectors is not None
    searches, labels = _search(generation, model, generation.reducer.reduce_queries(inputs.judged_vectors), hits)
    if len(labels) < len(inputs.judged):
        raise ConflictError(f"some judged queries have fewer than {hits} hits")
    relevant = _mark_relevant(generation, labels, inputs.judged)

    # At random, as files of judgements often follow a pattern.
    order = np.random.default_rng(0).permutation(len(labels))
    fitted, held_out = order[::2], order[1::2]
    model.fit_weights(searches.select(fitted), relevant[fitted])
    return model, searches.select(fitted), (searches.select(held_out), relevant[held_out, 0])


def evaluate_held_out(
    inputs: Inputs, held_out: HeldOut | None, predict: Callable[[Searches], NDArray[np.float64]]
) -> tuple[dict[str, Any] | None, str]:
    """Return the report on probabilities of held-out searches, None without judgements, and a sentence on them."""
    if held_out is None:
        return None, (
            f"Not judged: the probabilities assume that {inputs.base_rate:.0%} of the queries have an answer, and they "
            "order hits better than they tell how many are right."
        )
    searches, right = held_out
    figures = evaluate_probabilities(predict(searches)[:, 0], right).describe()
    return figures, figures.pop("sentence")


def spread(count: int, most: int) -> NDArray[np.int64]:
    """Return up to `most` evenly spaced numbers below `count`."""
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _search(
    generation: Generation, model: RelevanceModel, queries: Vectors, hits: int, own: Labels | None = None
) -> tuple[Searches, Labels]:
    """Search a generation for reduced queries. Return the searches that have all their hits, and the labels of these.

    Args:
        generation: rows to search.
        model: measures the hubs.
        queries: reduced queries `(q, d)`.
        hits: number of hits.
        own: label of the row that each query is, which is not a hit; None for other queries.
    """
    labels, scores, _ = generation.search(Query(queries, hits + 1, reduced=True))
    if own is not None:
        order = np.argsort(labels == own[:, None], axis=1, kind="stable")
        labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
    labels, scores = labels[:, :hits], scores[:, :hits]
    complete = (labels >= 0).all(1)
    labels, scores = labels[complete], scores[complete]
    view = generation.rows.take_view()
    rows, places = np.unique(np.searchsorted(view.labels, labels), return_inverse=True)
    hubs = model.measure_hubs(generation.vector_format.decode(view.compact[rows]))
    return Searches(queries[complete], scores, hubs[places.reshape(labels.shape)]), labels


def _mark_relevant(generation: Generation, labels: Labels, judged: dict[str, list[str]]) -> NDArray[np.bool_]:
    """Return whether each hit `(q, k)` of the judged queries is relevant, by its id or its text."""
    payloads = generation.record.read_payloads(np.unique(labels).tolist())
    text_field = generation.spec.text_field or "text"
    names = {
        label: {item, (parse_metadata(item, metadata) or {}).get(text_field) if metadata else None}
        for label, (item, metadata) in payloads.items()
    }
    return np.array(
        [
            [bool(names.get(label, set()) & set(documents)) for label in hits]
            for hits, documents in zip(labels.tolist(), judged.values(), strict=True)
        ]
    )
