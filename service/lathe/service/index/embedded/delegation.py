"""Searches that a job delegates to the owner of an index, the only process that has the graph.

job's process                                    the index's owner, when it has nothing else to do
search.<job>.npz in the generation's folder ──►  searches for one query after the other, and deletes the file
reads found.<job>.npz, and deletes it       ◄──  writes labels, scores and seconds, or the error
"""

import io
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lathe.service.errors import ConflictError, UnavailableError
from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.rows import Labels
from lathe.service.index.query import Query
from lathe.transforms.files import replace_synced

OWNER_SECONDS = 600.0
"""Seconds in which the owner must have done what a job asks. It also deletes answers of this age, read by no job."""
POLL_SECONDS = 0.05
"""Seconds between two looks whether the owner has done it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Answers:
    """Hits of delegated queries.

    Attributes:
        labels: labels of the hits of each query `(q, k)`, best first; −1 where there are fewer.
        scores: their scores `(q, k)`; for l2 distances.
        seconds: mean seconds of a query.
    """

    labels: Labels
    scores: NDArray[np.float32]
    seconds: float


def delegate(folder: Path, job: str, query: Query) -> Answers:
    """Let the owner of a generation search, and wait for the answers.

    Args:
        folder: folder of the generation.
        job: id of the job, which delegates one search at a time.
        query: the search, without a filter.

    Raises:
        ConflictError: if the generation is gone, or the owner cannot search.
        UnavailableError: if no owner answers within `OWNER_SECONDS`.
    """
    asked, found = folder / f"search.{job}.npz", folder / f"found.{job}.npz"
    content = io.BytesIO()
    options = np.array([query.k, query.ef or 0, query.rescoring or 0, query.exact], np.float64)
    np.savez(content, vectors=query.vectors, options=options)
    try:
        replace_synced(asked, content.getvalue())
        deadline = time.monotonic() + OWNER_SECONDS
        while not found.exists():
            if time.monotonic() > deadline:
                raise UnavailableError("no server that owns the index answers: start it and try again")
            if not folder.is_dir():
                raise FileNotFoundError
            time.sleep(POLL_SECONDS)
        with np.load(found) as answer:
            if "error" in answer:
                raise ConflictError(f"the index cannot be searched: {answer['error']}")
            return Answers(answer["labels"], answer["scores"], float(answer["seconds"]))
    except FileNotFoundError:
        raise ConflictError("the index was deleted or reindexed meanwhile") from None
    finally:
        asked.unlink(missing_ok=True)
        found.unlink(missing_ok=True)


def answer_delegated(generation: Generation) -> None:
    """Search a generation for what jobs have delegated, and write the answers. Errors are written too, not raised."""
    for asked in generation.folder.glob("search.*.npz"):
        content = io.BytesIO()
        try:
            with np.load(asked) as request:
                vectors, options = request["vectors"], request["options"]
            k, ef, rescoring, exact = options.tolist()
            query = Query(vectors[:1], int(k), int(ef) or None, rescoring or None, exact=bool(exact))
            begun = time.monotonic()
            found = [generation.search(replace(query, vectors=row[None]))[:2] for row in vectors]
            seconds = (time.monotonic() - begun) / len(vectors)
            labels, scores = (np.concatenate(part) for part in zip(*found, strict=True))
            np.savez(content, labels=labels, scores=scores, seconds=seconds)
        except Exception as error:
            log.exception("a delegated search in %s failed", generation.folder)
            np.savez(content, error=str(error) or type(error).__name__)
        asked.unlink(missing_ok=True)
        replace_synced(asked.with_name(asked.name.replace("search", "found", 1)), content.getvalue())
    for answer in generation.folder.glob("found.*.npz"):
        with suppress(FileNotFoundError):  # its job may delete it meanwhile
            if time.time() - answer.stat().st_mtime > OWNER_SECONDS:
                answer.unlink()
