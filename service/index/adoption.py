"""Cutover to a generation that a job built beside the serving one.

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
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import Timeout

from service.errors import ConflictError, OverloadedError, UnavailableError
from service.index.bridge import FOLDER, load_bridge
from service.index.generation import REPLAY_ROWS, Generation
from service.index.reducer import Reducer, read_artifact_files
from service.index.snapshot import restore_snapshot
from service.index.spec import spec_of
from training.locks import lock_file
from transforms.files import replace_synced

if TYPE_CHECKING:
    from service.index.index import Index

READY, REFUSED, MOVING = "ready.json", "refused.json", "moving.json"
"""Names of the files by which job and owner communicate."""
CHAIN_FOLDER = "chain"
"""Name of the folder with the new generation's chain."""
VECTORS = "vectors.f32"
"""Name of the file with the original vectors of a re-embedding."""

log = logging.getLogger(__name__)


class Adoption:
    """Owner's side of a reindexing, for one index; used by its maintenance thread alone."""

    def __init__(self, index: "Index") -> None:
        self.index = index

    def look(self) -> None:
        """Check the folders of new generations: cut over to finished ones, and delete those that no job works on.

        For a re-embedding in progress, the index is also told the required text field, and the alignment is loaded.
        """
        serving = f"graph-{self.index.generation.spec.generation}"
        for folder in self.index.folder.glob("graph-*"):
            if not folder.is_dir() or folder.name == serving:
                continue
            if abandoned(folder):
                self.remove(folder)
            elif (folder / READY).exists() and not (folder / REFUSED).exists():
                self.adopt_or_refuse(folder)
            elif self.index.moving_to is None and (folder / MOVING).exists():
                self.index.moving_to = json.loads((folder / MOVING).read_bytes())["text_field"]
                self.index.moving_folder = folder
            elif self.index.bridge is None:
                self.index.bridge = load_bridge(folder)

    def remove(self, folder: Path) -> None:
        """Delete an abandoned generation with its lock file and its originals in the record."""
        if self.index.moving_folder == folder:
            self.index.bridge = self.index.moving_to = self.index.moving_folder = None
        self.index.record.drop_spare_vectors()
        shutil.rmtree(folder, ignore_errors=True)
        lock_path(folder).unlink(missing_ok=True)

    def adopt_or_refuse(self, folder: Path) -> None:
        """Cut over to a finished generation; on failure keep the old one, and tell the job why in `refused.json`.

        If the server is only overloaded or unavailable, nothing is refused, and the next check tries again.
        """
        try:
            self.adopt(folder, json.loads((folder / READY).read_bytes()))
        except (OverloadedError, UnavailableError):
            log.warning("the index %s cannot take up its next generation yet; trying again", self.index.name)
        except Exception as error:
            log.exception("the index %s goes on as it was", self.index.name)
            reason = str(error) if isinstance(error, ConflictError) else f"{type(error).__name__} in the index's owner"
            replace_synced(folder / REFUSED, json.dumps({"error": reason}).encode())

    def adopt(self, folder: Path, ready: dict[str, Any]) -> None:
        """Open a finished generation, bring it up to date while the old one serves, then cut over in the writer thread.

        Args:
            folder: folder of the generation.
            ready: content of `ready.json`.
        """
        spec = spec_of(ready["spec"])
        artifact = None if spec.chain == "none" else read_artifact_files(folder / CHAIN_FOLDER)
        index = self.index
        generation = Generation(folder, spec, index.record, Reducer(spec, artifact), index.threads, index.exact_rows)
        try:
            restored = restore_snapshot(generation)
            if ready["text_field"] is not None:
                self.keep_originals(generation)
            self.catch_up(generation, ready["text_field"])
            self.index.in_turn(self.change_over, generation, artifact, ready).result()
            if restored is not None:
                self.index.snapshots.note(restored)
        except BaseException:
            generation.close()
            raise

    def change_over(self, generation: Generation, artifact: tuple[bytes, bytes] | None, ready: dict[str, Any]) -> None:
        """Cut over to the new generation: add the last items, change the record, delete the old files.

        Runs in the writer thread. No writes happen meanwhile; a search uses the old or the new generation as a whole.

        Args:
            generation: new generation.
            artifact: manifest and tensors of its chain; None for raw vectors.
            ready: content of `ready.json`.
        """
        self.index.healed()
        self.catch_up(generation, ready["text_field"])
        generation.rows.bury(self.index.record.tombstones())
        self.index.record.adopt(generation.spec, artifact)
        old, self.index.generation = self.index.generation, generation
        self.index.bridge = self.index.moving_to = self.index.moving_folder = None
        with suppress(sqlite3.Error):  # on a full disk they stay: no harm, and the change is made
            self.index.record.forget_tombstones(ready["sequence"])
        old.close()
        shutil.rmtree(old.folder, ignore_errors=True)
        for done in (VECTORS, READY, MOVING, f"{FOLDER}.json"):
            (generation.folder / done).unlink(missing_ok=True)
        for done in (CHAIN_FOLDER, FOLDER):
            shutil.rmtree(generation.folder / done, ignore_errors=True)

    def keep_originals(self, generation: Generation) -> None:
        """Copy the original vectors of a re-embedding into the record's next table, in batches between other writes."""
        spec, labels = generation.spec, generation.rows.view().labels
        vectors = np.memmap(generation.folder / VECTORS, np.float32, "r", shape=(len(labels), spec.width))
        for start in range(0, len(labels), REPLAY_ROWS):
            part = slice(start, start + REPLAY_ROWS)
            self.index.record.add_vectors(spec.vectors, labels[part], vectors[part], spec.originals)

    def catch_up(self, generation: Generation, text_field: str | None) -> None:
        """Add items to the new generation that were written since its job read the record, encoding texts if needed.

        Args:
            generation: new generation.
            text_field: metadata field with the text, if the encoder changes; else None.

        Raises:
            ConflictError: if the encoder changes and an item has no text.
        """
        if text_field is None:
            generation.replay()
            return
        while True:
            labels, payloads = self.index.record.payloads_after(generation.last_label, REPLAY_ROWS)
            if not len(labels):
                return
            texts = [text_of(item, metadata, text_field) for item, metadata in payloads]
            vectors = self.index.encode(generation.spec, texts)
            self.index.record.add_vectors(generation.spec.vectors, labels, vectors, generation.spec.originals)
            generation.append(labels, vectors)


def text_of(item: str, metadata: bytes | None, text_field: str) -> str:
    """Return the text of an item from its metadata.

    Raises:
        ConflictError: if the field is missing, not a text, or blank.
    """
    text = json.loads(metadata).get(text_field) if metadata else None
    if not isinstance(text, str) or not text.strip():
        raise ConflictError(
            f"the item {item!r} has no text in its metadata field {text_field!r} to embed it anew from", param="texts"
        )
    return text


def lock_path(folder: Path) -> Path:
    """Return the path of the lock that a job holds while it builds a generation; it lies beside the folder."""
    return folder.with_name(f"{folder.name}.lock")


def abandoned(folder: Path) -> bool:
    """Return whether no job works on a generation, by trying its lock."""
    try:
        with lock_file(lock_path(folder)).acquire(blocking=False):
            return True
    except Timeout:
        return False
