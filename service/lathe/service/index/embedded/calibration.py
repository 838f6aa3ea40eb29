"""Calibration of a generation: the model that gives each hit of a search its probability, and what it was made from.

graph-<generation>/calibration/
├── inputs.json, vectors.npy                 what a job sent: see `Inputs`
├── relevance.safetensors, relevance.json    see `RelevanceModel`
└── calibration.json                         see `Facts`

A job writes inputs to `calibration.next`. The index's owner calibrates with its own search, and renames the folder, or
deletes it and writes the reason to `calibration.refused.json`.
"""

import json
import logging
import shutil
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lathe.service.errors import ConflictError
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.probabilities import Calibration, Facts
from lathe.service.index.embedded.rows import Labels
from lathe.service.index.items import parse_metadata
from lathe.service.index.query import Query
from lathe.service.index.reducer import Vectors
from lathe.transforms.errors import ArtifactError, TransformError
from lathe.transforms.files import make_folder, read_json_file, replace_synced
from lathe.transforms.relevance import MIN_HITS, RelevanceModel, Searches, evaluate_probabilities

FOLDER, NEXT, REFUSED = "calibration", "calibration.next", "calibration.refused.json"
"""Names of the folders of the calibration and of the next one, and of the file with the reason of a refusal."""

INPUTS, VECTORS, FACTS = "inputs.json", "vectors.npy", "calibration.json"
"""Names of the files beside those of the model."""

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

POLL_SECONDS = 0.05
"""Seconds between two looks whether the index's owner has calibrated it."""

log = logging.getLogger(__name__)


@dataclass
class Inputs:
    """What an index is calibrated with; without queries, rows search for rows.

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

    def save(self, folder: Path) -> None:
        """Write the inputs for the owner of a generation to `calibration.next` in the generation's folder.

        Raises:
            ConflictError: if the owner has not yet read others, or there is no such generation.
        """
        if not folder.is_dir():
            raise ConflictError("the index was deleted or reindexed meanwhile")
        staging = folder / f".{FOLDER}.{self.id}"
        make_folder(staging)
        vectors = [given for given in (self.log, self.judged_vectors) if given is not None]
        if vectors:
            np.save(staging / VECTORS, np.concatenate(vectors).astype(np.float32))
        logged = None if self.log is None else len(self.log)
        content = {"id": self.id, "base_rate": self.base_rate, "texts": self.texts, "judged": self.judged}
        replace_synced(staging / INPUTS, json.dumps(content | {"log": logged}).encode())
        try:
            staging.rename(folder / NEXT)
        except OSError:
            shutil.rmtree(staging, ignore_errors=True)
            raise ConflictError("the index is being calibrated already") from None

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read inputs from a calibration's folder."""
        content = read_json_file(folder / INPUTS)
        logged = content.pop("log")
        if not (folder / VECTORS).exists():
            return cls(**content)
        vectors = np.load(folder / VECTORS, allow_pickle=False)
        log = None if logged is None else vectors[:logged]
        return cls(**content, log=log, judged_vectors=vectors[logged or 0 :])


def load_calibration(generation: Generation) -> Calibration | None:
    """Return the calibration in a generation's folder, or None if there is none that fits the generation."""
    folder = generation.folder / FOLDER
    if not folder.exists():
        return None
    try:
        facts = Facts(**read_json_file(folder / FACTS))
        model = RelevanceModel.load(folder)
    except (OSError, ValueError, TypeError, ArtifactError) as error:
        generation.notes.append(f"the calibration cannot be read ({error}): calibrate the index again")
        return None
    return (
        Calibration(generation.rows, generation.vector_format, model, facts)
        if facts.space_id == generation.spec.space_id
        else None
    )


def calibrate_next(generation: Generation) -> None:
    """Calibrate a generation with the inputs in `calibration.next`, if there are any.

    What goes wrong is written to `calibration.refused.json`, and the generation keeps its calibration.
    """
    following, present = generation.folder / NEXT, generation.folder / FOLDER
    if not following.exists():
        return
    refused = generation.folder / REFUSED
    refused.unlink(missing_ok=True)
    try:
        inputs = Inputs.load(following)
        calibration = calibrate(generation, inputs)
        calibration.model.save(following)
        replace_synced(following / FACTS, json.dumps(asdict(calibration.facts)).encode())
        shutil.rmtree(present, ignore_errors=True)
        following.rename(present)
        generation.use_calibration(calibration)
    except Exception as error:
        known = isinstance(error, ConflictError | TransformError)
        if not known:
            log.exception("a generation in %s cannot be calibrated", generation.folder)
        reason = str(error) if known else f"{type(error).__name__} in the index's owner"
        replace_synced(refused, json.dumps({"error": reason}).encode())
        shutil.rmtree(following, ignore_errors=True)


def calibrate_again(generation: Generation) -> None:
    """Let a generation be calibrated with the inputs of its calibration or, without one, with its rows, and wait.

    The index's maintenance thread does it. Too few rows, or another metric than cosine, change nothing.
    """
    present = generation.folder / FOLDER
    with suppress(ConflictError):  # a job has asked for it just now
        (Inputs.load(present) if (present / INPUTS).exists() else Inputs("import")).save(generation.folder)
    while (generation.folder / NEXT).exists():
        time.sleep(POLL_SECONDS)


def calibrate(generation: Generation, inputs: Inputs) -> Calibration:
    """Make the model of a generation from a sample of its rows and the inputs, by searches of the generation.

    Raises:
        ConflictError: if there are too few rows or queries, or the metric is not cosine.
        InputError: if the queries cannot be used, or all judged first hits are right or all are wrong.
    """
    begun = time.monotonic()
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

    sample = alive[_spread(len(alive), MAX_ROWS)]
    vectors = generation.vector_format.decode(view.compact[sample])
    own = None
    if inputs.log is None:
        searching = np.zeros(len(sample), np.bool_)
        searching[_spread(len(sample), min(MAX_SEARCHES, len(sample) // 2))] = True
        model = RelevanceModel.from_rows(vectors[~searching], base_rate=inputs.base_rate)
        queries, own = vectors[searching], view.labels[sample[searching]]
    else:
        reduced = generation.reducer.reduce_queries(inputs.log)
        searching = np.zeros(len(reduced), np.bool_)
        searching[_spread(len(reduced), min(MAX_SEARCHES, max(MIN_LOG - 100, len(reduced) // 5)))] = True
        model = RelevanceModel.from_rows(vectors, reduced[~searching], inputs.base_rate)
        queries = reduced[searching]

    # A calibration of its own, so that hubs that are measured now need not be measured again.
    calibration = Calibration(generation.rows, generation.vector_format, model, _NO_FACTS)
    model.fit(_search(generation, calibration, queries, own)[0])
    figures, sentence = (
        None,
        (
            f"Not judged: the probabilities assume that {inputs.base_rate:.0%} of the queries have an answer, and they "
            "order hits better than they tell how many are right."
        ),
    )
    if inputs.judged:
        figures = _fit_judgements(generation, calibration, inputs)
        sentence = figures.pop("sentence")
    facts = Facts(
        id=inputs.id,
        space_id=generation.spec.space_id,
        kind=model.kind,
        base_rate=None if inputs.judged else inputs.base_rate,
        queries=0 if inputs.log is None else len(inputs.log),
        rows=len(alive),
        last_label=generation.last_label,
        seconds=round(time.monotonic() - begun, 3),
        figures=figures,
        sentence=sentence,
    )
    calibration.state_facts(facts)
    return calibration


_NO_FACTS = Facts("", "", "rows", None, 0, 0, 0, 0, None, "")


def _spread(count: int, most: int) -> NDArray[np.int64]:
    return np.linspace(0, count - 1, min(count, most)).astype(np.int64)


def _search(
    generation: Generation, calibration: Calibration, queries: Vectors, own: Labels | None = None
) -> tuple[Searches, Labels]:
    """Search a generation for reduced queries. Return the searches that have ten hits, and the labels of the hits.

    Args:
        generation: rows to search.
        calibration: measures the hubs.
        queries: reduced queries `(q, d)`.
        own: label of the row that each query is, which is not a hit; None for other queries.
    """
    labels, scores, _ = generation.search(Query(queries, MIN_HITS + 1, reduced=True))
    if own is not None:
        order = np.argsort(labels == own[:, None], axis=1, kind="stable")
        labels, scores = np.take_along_axis(labels, order, 1), np.take_along_axis(scores, order, 1)
    labels, scores = labels[:, :MIN_HITS], scores[:, :MIN_HITS]
    complete = (labels >= 0).all(1)
    labels, scores = labels[complete], scores[complete]
    rows = np.searchsorted(generation.rows.take_view().labels, labels)
    return Searches(queries[complete], scores, calibration.find_hubs(rows)), labels


def _fit_judgements(generation: Generation, calibration: Calibration, inputs: Inputs) -> dict[str, Any]:
    """Fit the weights on half of the judged queries, and return the report on the others."""
    model = calibration.model
    assert inputs.judged_vectors is not None
    searches, labels = _search(generation, calibration, generation.reducer.reduce_queries(inputs.judged_vectors))
    if len(labels) < len(inputs.judged):
        raise ConflictError("some judged queries have fewer than ten hits")
    payloads = generation.record.read_payloads(np.unique(labels).tolist())
    text_field = generation.spec.text_field or "text"
    names = {
        label: {item, (parse_metadata(item, metadata) or {}).get(text_field) if metadata else None}
        for label, (item, metadata) in payloads.items()
    }
    relevant = np.array(
        [
            [bool(names.get(label, set()) & set(documents)) for label in hits]
            for hits, documents in zip(labels.tolist(), inputs.judged.values(), strict=True)
        ]
    )

    # At random, as files of judgements often follow a pattern.
    order = np.random.default_rng(0).permutation(len(labels))
    fitted, held_out = order[::2], order[1::2]
    of_fit, of_report = (
        Searches(searches.queries[part], searches.scores[part], searches.hubs[part]) for part in (fitted, held_out)
    )
    model.fit_weights(of_fit, relevant[fitted])
    return evaluate_probabilities(model.predict_proba(of_report)[:, 0], relevant[held_out, 0]).describe()
