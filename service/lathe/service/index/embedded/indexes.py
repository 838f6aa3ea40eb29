"""Indexes of the state folder: opening, creating, deleting and locking their folders."""

import json
import logging
import os
import secrets
import shutil
import threading
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lathe.service.chains.names import is_name, require_name
from lathe.service.errors import ConflictError, UnavailableError, UnknownNameError, convert_error
from lathe.service.home import Home
from lathe.service.index.embedded.damage import RecordChecks
from lathe.service.index.embedded.index import EmbeddedIndex, EncodeTexts
from lathe.service.index.embedded.maintenance import Maintainer
from lathe.service.index.embedded.record import IndexRecord
from lathe.service.index.protocol import Artifact, Capabilities, Quality
from lathe.service.index.spec import IndexSpec
from lathe.service.settings import Settings
from lathe.training.locks import lock_file
from lathe.transforms.files import create_file, make_folder, make_root, read_json_file, sync_folder

log = logging.getLogger(__name__)


class EmbeddedIndexes:
    """All indexes in a folder. Each is opened when it is first used, and then owned by this process until `close`.

    Args:
        threads: number of threads for a search.
        graph_threads: number of threads for adding rows to graphs.

    Attributes:
        ready: event that is set once every index that can be opened at the start is open.
        unopened: why an index could not be opened, by name.
    """

    capabilities = Capabilities(name="embedded", in_state_folder=True, reindexing=True, ordered=True, backup_tool=None)

    def __init__(self, root: Path, threads: int, graph_threads: int, encode: EncodeTexts) -> None:
        self.root = root
        self.threads = threads
        self.graph_threads = graph_threads
        self.encode = encode
        self.opened: dict[str, EmbeddedIndex] = {}
        self.changing = threading.Lock()
        self.opening: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.ready = threading.Event()
        self.closed = False
        self.unopened: dict[str, str] = {}
        self.checks = RecordChecks()

    @classmethod
    def open(cls, settings: Settings, home: Home, encode: EncodeTexts) -> "EmbeddedIndexes":
        """Return the indexes of the state folder with the settings' numbers of threads. None is opened yet."""
        return cls(home.indexes, settings.threads, settings.graph_threads, encode)

    def start(self) -> None:
        """Start opening all indexes in a thread, so that the first search need not wait, and return at once."""
        threading.Thread(target=self.open_all, name="indexes", daemon=True).start()

    def open_all(self) -> None:
        """Open every index in the folder that can be opened, set the event `ready`, and start the damage checks.

        Errors are noted for `warnings`, not raised.
        """
        self.unopened |= {name: "its record.db is missing" for name in _list_folders_without_record(self.root)}
        for name in self.names():
            with suppress(Exception):
                self.get(name)
        self.ready.set()
        self.checks.start()  # it reads every record as a whole, so nothing waits for it

    def warnings(self) -> list[str]:
        """Return a sentence for each index that cannot open, is damaged or not maintained, stale, or loses hits."""
        damaged = [f"the index {name} is damaged: {damage}" for name, damage in self.checks.list_damaged().items()]
        opened = self.opened.copy()
        maintenance = [index.maintenance_warning for index in opened.values()]
        stale = [
            f"many rows of the index {name} are newer than its calibration: lathe index calibrate {name}"
            for name, index in opened.items()
            if index.is_calibration_stale
        ]
        lossy = [
            f"the graph of the index {name} loses {loss} of recall@10: search with a larger "
            f"ef, or build it again: lathe index reindex {name}"
            for name, index in opened.items()
            if (loss := index.excessive_loss) is not None
        ]
        unopened = [f"the index {name} cannot be opened: {why}" for name, why in self.unopened.copy().items()]
        return unopened + damaged + stale + lossy + [message for message in maintenance if message]

    def count_states(self) -> dict[str, int]:
        """Return `{state: number of indexes}` for the states open, damaged and unavailable."""
        damaged = len(self.checks.list_damaged())
        return {"open": len(self.opened) - damaged, "damaged": damaged, "unavailable": len(self.unopened)}

    def measure_quality(self) -> dict[str, Quality]:
        """Return what searches lose and which rows are faulty, by name of the index, for the metrics."""
        return {name: index.measure_quality() for name, index in self.opened.copy().items()}

    def close(self) -> None:
        """Stop the damage checks and close all indexes. Later attempts to open an index fail."""
        with self.changing:
            self.closed = True
            opened, self.opened = self.opened, {}
        self.checks.stop()
        for index in opened.values():
            index.close()

    def names(self) -> list[str]:
        """Return the names of all indexes."""
        return [folder.name for folder in list_index_folders(self.root)]

    def is_open(self, name: str) -> bool:
        """Return whether the index of that name is open."""
        return name in self.opened

    def get(self, name: str) -> EmbeddedIndex:
        """Return the open index of that name, opening it first if necessary.

        If its record cannot be read, the reason is kept for `warnings`.

        Raises:
            UnknownNameError: if there is no such index.
            ConflictError: if another process owns it.
            UnavailableError: if its record cannot be read, or the server is stopping.
        """
        index = self.opened.get(name)
        if index is not None:
            return index

        folder = self.root / name
        if not is_name(name) or not (folder / "record.db").exists():
            self.unopened.pop(name, None)
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no index {name[:80]!r}; there are: {known}", param="name")

        with self.get_opening_lock(name):
            if name in self.opened:
                return self.opened[name]
            try:
                return self._open(name, folder, acquire_index(folder, name))
            except (UnknownNameError, ConflictError):  # deleted meanwhile, or owned by another process
                self.unopened.pop(name, None)
                raise
            except Exception as error:
                self.unopened[name] = convert_error(error).message
                raise

    def _open(self, name: str, folder: Path, lock: FileLock) -> EmbeddedIndex:
        """Open an index whose lock this process holds, start its maintenance, queue its damage check, and return it.

        Raises the errors of `get`.
        """
        try:
            _require_not_deleted(folder)
            index = EmbeddedIndex(name, folder, lock, self.threads, self.graph_threads, self.encode)
        except BaseException:
            lock.release()
            raise

        with self.changing:
            # Under the lock that `close` takes: an index that was added after it would never be closed.
            if not self.closed:
                self.opened[name] = index
                self.unopened.pop(name, None)
                self.checks.queue(name, folder / "record.db")
                index.start(Maintainer(index).run)
                return index
        index.close()
        raise UnavailableError("the server is stopping", code="closing")

    def create(self, name: str, spec: IndexSpec, artifact: Artifact) -> EmbeddedIndex:
        """Create an index with these settings and chain of transforms, and return it.

        If an index of that name exists, it is returned unchanged.

        Raises:
            BadValueError: if no index can have that name.
        """
        require_name(name, "an index")
        folder = self.root / name
        with self.get_opening_lock(name):
            if name not in self.names():
                # Owned before it exists: a server that looks for new indexes would take it from a command.
                make_root(self.root)
                lock = acquire_index(folder, name)
                try:
                    self.create_folder(name, spec, artifact)
                    _note_owner(folder)
                except BaseException:
                    lock.release()
                    raise
                return self._open(name, folder, lock)
        return self.get(name)

    def create_folder(self, name: str, spec: IndexSpec, artifact: Artifact) -> None:
        """Create a new index's folder and record atomically. If another request created it first, keep that one."""
        staging = self.root / f".{name}.{secrets.token_hex(6)}"
        try:
            make_root(self.root)
            make_folder(staging)
            IndexRecord.create(staging / "record.db", spec, artifact).close()
            try:
                staging.rename(self.root / name)
            except OSError:
                if name not in self.names():  # else a request was faster, and the caller compares the settings
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root)

    def delete(self, name: str) -> None:
        """Delete an index and all its files permanently, even if its record is damaged.

        Raises:
            UnknownNameError: if there is no such index, also if another request deleted it first.
            ConflictError: if another process owns it.
        """
        self.require_owned(name)
        with self.get_opening_lock(name):
            with self.changing:
                index = self.opened.pop(name, None)
            self.checks.cancel(name)
            lock = acquire_index(self.root / name, name) if index is None else index.lock
            try:
                if index is None:
                    _require_not_deleted(self.root / name)  # another request may have deleted it
                else:
                    index.close_for_deletion()
                # Renamed first: a kill while files are deleted leaves no index with a part of its files.
                leftover = self.root / f".{name}.{secrets.token_hex(6)}"
                (self.root / name).rename(leftover)
                sync_folder(self.root)
                self.unopened.pop(name, None)
            finally:
                lock.release()
        shutil.rmtree(leftover, ignore_errors=True)

    def get_opening_lock(self, name: str) -> threading.Lock:
        """Return the lock that must be held while the index of that name is opened or deleted."""
        with self.changing:
            return self.opening[name]

    def require_owned(self, name: str) -> None:
        """Raise if an index does not exist or another process owns it. An index with a damaged record does not raise.

        The index is opened if that is possible.

        Raises:
            UnknownNameError: if there is no such index.
            ConflictError: if another process owns it.
        """
        try:
            self.get(name)
        except (UnknownNameError, ConflictError):
            raise
        except Exception:
            with self.get_opening_lock(name):
                acquire_index(self.root / name, name).release()

    def describe(self) -> list[dict[str, Any]]:
        """Return a dict for each index: its settings, counts and state.

        An index that cannot be opened has its name, state and error instead.
        """
        described: list[dict[str, Any]] = []
        for name in self.names():
            try:
                described.append(self.get(name).describe())
            except UnknownNameError:
                continue  # deleted since the names were read
            except Exception as error:
                state = "owned elsewhere" if isinstance(error, ConflictError) else "unavailable"
                described.append({"name": name, "state": state, "error": convert_error(error).message})
        return described


def _require_not_deleted(folder: Path) -> None:
    if not (folder / "record.db").exists():
        raise UnknownNameError(f"the index {folder.name} was deleted", param="name")


def _list_folders_without_record(root: Path) -> list[str]:
    folders = [folder for folder in root.iterdir() if folder.is_dir()] if root.is_dir() else []
    return [folder.name for folder in folders if is_name(folder.name) and not (folder / "record.db").exists()]


def list_index_folders(root: Path) -> list[Path]:
    """Return the folders in `root` that hold the record of an index, sorted by name. Without `root`, return []."""
    if not root.is_dir():
        return []
    return sorted(folder for folder in root.iterdir() if is_name(folder.name) and (folder / "record.db").exists())


def acquire_index(folder: Path, name: str) -> FileLock:
    """Take the lock by which one process owns an index, and return it. Raise if another process holds it.

    The lock is not waited for. One process owns an index, because the graph is in its memory, and the record has one
    writer. The lock file lies next to the folder of the index, so that it stays when the folder is created or deleted.
    The process id is written to `owner.json` in the folder, if that is possible.

    Raises:
        ConflictError: if another process holds the lock.
        UnavailableError: if the lock file cannot be used.
    """
    lock = lock_file(folder.with_name(f".{folder.name}.lock"))
    note = folder / "owner.json"
    try:
        lock.acquire(blocking=False)
    except Timeout:
        owner = "another process"
        with suppress(OSError, ValueError, KeyError, TypeError):
            owner = f"process {int(read_json_file(note)['pid'])}"
        raise ConflictError(
            f"the index {name} is owned by {owner}, a server or a command, and one process owns an index: send its "
            f"requests to that server (POST /indexes/{name}/upsert adds items), or use another name",
            param="name",
            code="index_owned_elsewhere",
        ) from None
    except OSError as error:
        raise UnavailableError(f"the index {name} cannot be locked: {error.strerror}") from error

    _note_owner(folder)
    return lock


def _note_owner(folder: Path) -> None:
    """Write this process's id to `owner.json` in the index's folder, if the folder exists."""
    with suppress(OSError):  # there may be no folder yet, or no more
        with create_file(folder / "owner.json") as file:
            file.write(json.dumps({"pid": os.getpid()}).encode())
