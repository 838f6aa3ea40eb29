"""Maintenance of an index, in a thread that works while others search and write.

The thread adds rows to the graph, writes snapshots, and cuts over to generations that jobs build next to the one that
serves:

  job's process                              the index's owner
  graph-<g>.lock held, graph-<g>/ made
  (re-embedding: moving.json)    ─────────►  items without a text are refused from now on
  (re-embedding: alignment/)     ─────────►  queries of the new encoder are answered through it
  rows, graph, snapshot, ready.json ──────►  originals into the record, items added meanwhile,
                                             then in the writer thread: the last items, the record's
  sees the record name it, ends  ◄─────────  settings and the serving generation change together
  or fails with what refused.json says

If the job dies before that, its lock is free, and the owner removes the folder.
"""

import json
import logging
import shutil
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from filelock import Timeout

from lathe.service.chains.names import RAW
from lathe.service.errors import ConflictError, OverloadedError, UnavailableError
from lathe.service.index.bridge import ALIGNMENT_FOLDER, load_bridge
from lathe.service.index.embedded.calibration import calibrate_next, load_calibration
from lathe.service.index.embedded.delegation import answer_delegated
from lathe.service.index.embedded.generation import REPLAY_ROWS, Generation
from lathe.service.index.embedded.index import EmbeddedIndex
from lathe.service.index.embedded.snapshot import restore_snapshot
from lathe.service.index.embedded.watch import CHECKUP
from lathe.service.index.items import get_text
from lathe.service.index.protocol import Artifact
from lathe.service.index.reducer import Reducer, read_artifact_files
from lathe.service.index.spec import parse_spec
from lathe.training.locks import lock_file
from lathe.transforms.files import read_json_file, replace_synced

CHUNK_ROWS = 128
"""Number of rows added to the graph between two checks. While thousands are missing, searches wait for all of them."""

SNAPSHOT_SECONDS = 60.0
"""Minimum number of seconds between snapshots."""
SNAPSHOT_SHARE = 20
"""Minimum pause between snapshots, as a multiple of the time that the last one took."""

IDLE_SECONDS = 0.5
"""Maximum number of seconds to wait for new rows before looking for other work."""

READY, REFUSED, MOVING = "ready.json", "refused.json", "moving.json"
"""Names of the files by which job and owner communicate."""
CHAIN_FOLDER = "chain"
"""Name of the folder with the new generation's chain."""
VECTORS = "vectors.f32"
"""Name of the file with the original vectors of a re-embedding."""

log = logging.getLogger(__name__)


class Maintainer:
    """Background work on an index: adds rows to the graph, writes snapshots, cuts over to reindexed generations."""

    def __init__(self, index: EmbeddedIndex) -> None:
        self.index = index
        self.cutover = Cutover(index)
        self.problem = index.maintenance_problem
        self.stopping = index.stopping
        self.next_snapshot = 0.0

    def run(self) -> None:
        """Call `run_step` until the index is closed, waiting for new rows when idle. Errors are noted, not raised."""
        while not self.stopping.is_set():
            lacking = 0
            with self.problem.watch():
                lacking = self.run_step()
            if not lacking:
                self.index.wait_for_rows(IDLE_SECONDS)

    def run_step(self) -> int:
        """Cut over to a finished generation, add up to 128 rows to the graph, and return how many rows it still lacks.

        If it lacks none, a snapshot is written when one is due, the index is calibrated or searched if a job asks for
        it, a canary is asked when one is due, and the number of rows whose hub may be missing is returned. An error in
        the cutover is logged, and the step goes on.
        """
        try:
            self.cutover.check_generations()
        except Exception:
            log.exception("the next generation of the index %s cannot be checked", self.index.name)

        # A few rows at a time, because searches wait meanwhile.
        lacking = self.index.extend_graph(CHUNK_ROWS)
        if not lacking and time.monotonic() >= self.next_snapshot:
            begun = time.monotonic()
            try:
                self.index.write_snapshot()
            finally:  # on a full disk, too, the next try comes later
                took = time.monotonic() - begun
                self.next_snapshot = time.monotonic() + max(SNAPSHOT_SECONDS, SNAPSHOT_SHARE * took)
        if not lacking:
            generation = self.index.generation
            calibrate_next(generation)
            answer_delegated(generation)
            self.index.ask_canary()
            if generation.calibration is not None:
                return generation.calibration.measure_next(CHUNK_ROWS)
        return lacking


class Cutover:
    """Replacement of an index's serving generation by one that a reindexing job built.

    The index's maintenance thread alone calls it.
    """

    def __init__(self, index: EmbeddedIndex) -> None:
        self.index = index
        self.folder = index.folder
        self.record = index.record

    def check_generations(self) -> None:
        """Cut over to a finished generation, and delete generations that have no running job.

        A re-embedding in progress begins a move of the index, and its alignment is added once that is fitted.
        """
        spec = self.index.spec
        for folder in self.folder.glob("graph-*"):
            if not folder.is_dir() or folder.name == f"graph-{spec.generation}":
                continue
            if _is_abandoned(folder):
                self._delete_abandoned(folder)
            elif (folder / READY).exists() and not (folder / REFUSED).exists():
                self._cut_over_or_refuse(folder)
            elif self.index.move is None and (folder / MOVING).exists():
                self.index.begin_move(folder, read_json_file(folder / MOVING)["text_field"])
            elif (move := self.index.move) is not None and move.bridge is None:
                self.index.set_move_bridge(load_bridge(folder))

    def _delete_abandoned(self, folder: Path) -> None:
        """Delete the folder, lock file and vectors of a generation whose job died, and end the move it was for."""
        move = self.index.move
        if move is not None and move.folder == folder:
            self.index.end_move()
        self.record.drop_spare_vectors()
        shutil.rmtree(folder, ignore_errors=True)
        build_lock_path(folder).unlink(missing_ok=True)

    def _cut_over_or_refuse(self, folder: Path) -> None:
        """Let a finished generation serve. If that fails, write the reason to `refused.json`, which the job reads.

        If the server is only overloaded or unavailable, nothing is refused, and the next check tries again.
        """
        try:
            self._cut_over(folder, read_json_file(folder / READY))
        except (OverloadedError, UnavailableError):
            log.warning("the index %s cannot cut over to its next generation yet; trying again", self.index.name)
        except Exception as error:
            log.exception("the index %s keeps its generation: the cutover failed", self.index.name)
            reason = str(error) if isinstance(error, ConflictError) else f"{type(error).__name__} in the index's owner"
            replace_synced(folder / REFUSED, json.dumps({"error": reason}).encode())

    def _cut_over(self, folder: Path, ready: dict[str, Any]) -> None:
        """Open a finished generation, add the items written meanwhile, and let it serve in place of the old one.

        For a re-embedding, the new original vectors are first copied into the record. On an error the new generation is
        closed, and the error raised.

        Args:
            folder: folder of the generation.
            ready: content of the job's `ready.json`, `{spec, sequence, text_field}`.
        """
        spec = parse_spec(ready["spec"])
        artifact = None if spec.chain == RAW else read_artifact_files(folder / CHAIN_FOLDER)
        generation = self.index.create_generation(folder, spec, Reducer(spec, artifact))
        # Most items are caught up here, while the old generation serves, so that the writer waits for few.
        restored = restore_snapshot(generation)
        if ready["text_field"] is not None:
            self._copy_originals(generation)
        self._catch_up(generation, ready["text_field"])
        calibrate_next(generation)  # before the cutover, so that no search comes between that asks for a probability
        if generation.calibration is None:
            generation.use_calibration(load_calibration(generation))  # of a cutover that failed
        self.index.run_in_writer(self._switch_generation, generation, artifact, ready, restored).result()

    def _switch_generation(
        self, generation: Generation, artifact: Artifact, ready: dict[str, Any], snapshot: dict[str, Any] | None
    ) -> None:
        """Add the last items to the new generation, let it serve, and delete the old folder and the job's files.

        Runs in the writer thread, where no write happens meanwhile.
        """
        self.index.recover_generation()
        self._catch_up(generation, ready["text_field"])
        generation.rows.mark_dead(self.record.read_tombstones())
        old = self.index.switch_to(generation, artifact, snapshot)

        with suppress(sqlite3.Error):  # on a full disk they stay, which does no harm
            self.record.delete_tombstones(ready["sequence"])
        shutil.rmtree(old.folder, ignore_errors=True)
        (self.index.folder / CHECKUP).unlink(missing_ok=True)  # was of the old generation
        for name in (VECTORS, READY, MOVING, f"{ALIGNMENT_FOLDER}.json"):
            (generation.folder / name).unlink(missing_ok=True)
        for name in (CHAIN_FOLDER, ALIGNMENT_FOLDER):
            shutil.rmtree(generation.folder / name, ignore_errors=True)

    def _copy_originals(self, generation: Generation) -> None:
        """Copy the vectors by the new encoder from the job's file into the record's next table of vectors, in batches.

        Each batch is a transaction, so that other writes come in between.
        """
        spec, labels = generation.spec, generation.rows.take_view().labels
        vectors = np.memmap(generation.folder / VECTORS, np.float32, "r", shape=(len(labels), spec.width))
        for start in range(0, len(labels), REPLAY_ROWS):
            batch = slice(start, start + REPLAY_ROWS)
            self.record.add_vectors(spec.vectors, labels[batch], vectors[batch], spec.originals)

    def _catch_up(self, generation: Generation, text_field: str | None) -> None:
        """Append rows to the new generation for items that were written after its job read the record.

        If the encoder changes, their texts are encoded, and the vectors are also written to the record.

        Raises:
            ConflictError: if the encoder changes and an item has no text.
        """
        if text_field is None:
            generation.replay()
            return

        while True:
            labels, payloads = self.record.read_payloads_after(generation.last_label, REPLAY_ROWS)
            if not len(labels):
                return
            texts = [get_text(item, metadata, text_field) for item, metadata in payloads]
            vectors = self.index.encode(generation.spec, texts)
            self.record.add_vectors(generation.spec.vectors, labels, vectors, generation.spec.originals)
            generation.append(labels, vectors)


def build_lock_path(folder: Path) -> Path:
    """Return the path of the lock that a job holds while it builds a generation, beside the generation's folder."""
    return folder.with_name(f"{folder.name}.lock")


def _is_abandoned(folder: Path) -> bool:
    try:
        with lock_file(build_lock_path(folder)).acquire(blocking=False):
            return True
    except Timeout:
        return False
