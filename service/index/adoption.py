"""How a generation that a job made beside the serving one comes to serve.

  job's process                              the index's owner
  graph-<g>.lock held, graph-<g>/ made
  (re-embedding: moving.json)    ─────────►  items without a text are refused from now on
  (re-embedding: alignment/)     ─────────►  queries of the new encoder are answered through it
  rows, graph, snapshot, ready.json ──────►  originals into the record, items added meanwhile,
                                             then in the writer's turn: the last items, the record's
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
CHAIN_FOLDER = "chain"
VECTORS = "vectors.f32"

log = logging.getLogger(__name__)


class Adoption:
    """The owner's side of reindexing, for one index; used by its keeper alone."""

    def __init__(self, index: "Index") -> None:
        self.index = index

    def look(self) -> None:
        """Take up what jobs have made, and remove what they left."""
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
        """Remove a generation nobody works on."""
        if self.index.moving_folder == folder:
            self.index.bridge = self.index.moving_to = self.index.moving_folder = None
        self.index.record.drop_spare_vectors()
        shutil.rmtree(folder, ignore_errors=True)
        lock_path(folder).unlink(missing_ok=True)

    def adopt_or_refuse(self, folder: Path) -> None:
        """Let a generation serve; if that cannot be, its job is told why and the old one serves on."""
        try:
            self.adopt(folder, json.loads((folder / READY).read_bytes()))
        except (OverloadedError, UnavailableError):
            log.warning("the index %s cannot take up its next generation yet; trying again", self.index.name)
        except Exception as error:
            log.exception("the index %s goes on as it was", self.index.name)
            reason = str(error) if isinstance(error, ConflictError) else f"{type(error).__name__} in the index's owner"
            replace_synced(folder / REFUSED, json.dumps({"error": reason}).encode())

    def adopt(self, folder: Path, ready: dict[str, Any]) -> None:
        """Bring a generation up to date while the old one serves, then change over."""
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
        """In the writer's turn: nobody writes meanwhile, searches use the old or the new, whole."""
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
        """Put the originals of a re-embedding into the record's next table, batch by batch between other writes."""
        spec, labels = generation.spec, generation.rows.view().labels
        vectors = np.memmap(generation.folder / VECTORS, np.float32, "r", shape=(len(labels), spec.width))
        for start in range(0, len(labels), REPLAY_ROWS):
            part = slice(start, start + REPLAY_ROWS)
            self.index.record.add_vectors(spec.vectors, labels[part], vectors[part], spec.originals)

    def catch_up(self, generation: Generation, text_field: str | None) -> None:
        """Add the items that came since the job read the record.

        Raises:
            ConflictError: if one has no text where the encoder changes.
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
    """The text of an item, from its metadata.

    Raises:
        ConflictError: if it has none.
    """
    text = json.loads(metadata).get(text_field) if metadata else None
    if not isinstance(text, str) or not text.strip():
        raise ConflictError(
            f"the item {item!r} has no text in its metadata field {text_field!r} to embed it anew from", param="texts"
        )
    return text


def lock_path(folder: Path) -> Path:
    """The lock a job holds while it makes a generation; beside the folder, so that it is there first."""
    return folder.with_name(f"{folder.name}.lock")


def abandoned(folder: Path) -> bool:
    """Whether no job works on a generation."""
    try:
        with lock_file(lock_path(folder)).acquire(blocking=False):
            return True
    except Timeout:
        return False
