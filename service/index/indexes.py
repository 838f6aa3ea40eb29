"""The indexes of a state folder."""

import secrets
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from service.errors import ConflictError, UnavailableError, UnknownNameError, as_service_error
from service.index.checks import RecordChecks
from service.index.index import Index, Texts
from service.index.ownership import own
from service.index.record import Record
from service.index.spec import IndexSpec
from service.names import is_name, require_name
from transforms.files import make_folder, make_root, sync_folder

SWEPT_SECONDS = 3600.0


class Indexes:
    """Opens indexes when they are asked for, and keeps them open: their folders are this process's then."""

    needs_home = True

    def __init__(self, root: Path, threads: int, job_threads: int, encode: Texts) -> None:
        self.root = root
        self.threads = threads
        self.job_threads = job_threads
        self.encode = encode
        self.opened: dict[str, Index] = {}
        self.changing = threading.Lock()
        self.opening: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self.ready = threading.Event()
        self.closed = False
        self.unopened: dict[str, str] = {}
        self.checks = RecordChecks()

    def start(self) -> None:
        """Begin to open all there are, so that the first search need not wait; returns at once."""
        threading.Thread(target=self.open_all, name="indexes", daemon=True).start()

    def open_all(self) -> None:
        """Open all that can be; the others say why when they are asked for."""
        sweep(self.root)
        self.unopened |= {name: "its record.db is missing" for name in without_record(self.root)}
        for name in self.names():
            with suppress(Exception):
                self.get(name)
        self.ready.set()
        self.checks.start()  # they read every record whole: nobody waits for that

    def warnings(self) -> list[str]:
        """What is wrong with indexes, as was last seen: nothing is read now."""
        damaged = [f"the index {name} is damaged: {damage}" for name, damage in self.checks.damaged().items()]
        return [f"the index {name} cannot be opened: {why}" for name, why in self.unopened.copy().items()] + damaged

    def states(self) -> dict[str, int]:
        """How many indexes are open, damaged and unavailable."""
        damaged = len(self.checks.damaged())
        return {"open": len(self.opened) - damaged, "damaged": damaged, "unavailable": len(self.unopened)}

    def close(self) -> None:
        """Let go of all."""
        with self.changing:
            self.closed = True
            opened, self.opened = self.opened, {}
        self.checks.stop()
        for index in opened.values():
            index.close()

    def names(self) -> list[str]:
        """Indexes there are."""
        return [folder.name for folder in index_folders(self.root)]

    def get(self, name: str) -> Index:
        """An index, open.

        Raises:
            UnknownNameError: if there is none of that name.
            ConflictError: if another process owns it.
            UnavailableError: if its record cannot be read.
        """
        found = self.opened.get(name)
        if found is not None:
            return found
        folder = self.root / name
        if not is_name(name) or not (folder / "record.db").exists():
            self.unopened.pop(name, None)
            known = ", ".join(self.names()) or "none yet"
            raise UnknownNameError(f"there is no index {name[:80]!r}; there are: {known}", param="name")
        with self.opening_of(name):
            if name in self.opened:
                return self.opened[name]
            try:
                return self.open(name, folder)
            except (UnknownNameError, ConflictError):  # deleted meanwhile, or its owner answers for it
                self.unopened.pop(name, None)
                raise
            except Exception as error:
                self.unopened[name] = as_service_error(error).message
                raise

    def open(self, name: str, folder: Path) -> Index:
        """Open an index that is not open; errors as `get`."""
        lock = own(folder, name)
        try:
            require_there(folder)
            index = Index(name, folder, lock, self.threads, self.job_threads, self.encode)
        except BaseException:
            lock.release()
            raise
        with self.changing:
            if not self.closed:
                self.opened[name] = index
                self.unopened.pop(name, None)
                self.checks.add(name, folder / "record.db")
                index.start()
                return index
        index.close()
        raise UnavailableError("the server is stopping", code="closing")

    def create(self, name: str, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> Index:
        """A new index; one that is there already is kept as it is.

        Args:
            name: of the index.
            spec: its settings.
            artifact: manifest and tensors of its chain.

        Raises:
            BadValueError: for a name no index can have.
        """
        require_name(name, "an index")
        if name not in self.names():
            self.make(name, spec, artifact)
        return self.get(name)

    def make(self, name: str, spec: IndexSpec, artifact: tuple[bytes, bytes] | None) -> None:
        """Write a new index's folder, whole or not at all."""
        staging = self.root / f".{name}.{secrets.token_hex(6)}"
        try:
            make_root(self.root)
            make_folder(staging)
            Record.create(staging / "record.db", spec, artifact).close()
            try:
                staging.rename(self.root / name)
            except OSError:
                if name not in self.names():  # if it is, another request was quicker; its settings are compared next
                    raise
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        sync_folder(self.root)

    def delete(self, name: str) -> None:
        """Remove an index for good.

        Raises:
            ServiceError: as `get`, also if another deletion was quicker; but one whose record is damaged goes too.
        """
        self.require_owned(name)
        with self.opening_of(name):
            with self.changing:
                index = self.opened.pop(name, None)
            self.checks.drop(name)
            lock = own(self.root / name, name) if index is None else index.lock
            try:
                if index is None:
                    require_there(self.root / name)  # another deletion may have been quicker
                else:
                    index.deleted = True
                    index.close(snapshot=False, release=False)
                doomed = self.root / f".{name}.{secrets.token_hex(6)}"
                (self.root / name).rename(doomed)
                sync_folder(self.root)
                self.unopened.pop(name, None)
            finally:
                lock.release()
        shutil.rmtree(doomed, ignore_errors=True)

    def opening_of(self, name: str) -> threading.Lock:
        """Held while an index is opened or deleted: one at a time."""
        with self.changing:
            return self.opening[name]

    def require_owned(self, name: str) -> None:
        """Raise unless an index is there and this process's, or nobody's because it cannot be opened."""
        try:
            self.get(name)
        except (UnknownNameError, ConflictError):
            raise
        except Exception:
            with self.opening_of(name):
                own(self.root / name, name).release()

    def describe(self) -> list[dict[str, Any]]:
        """All indexes; those that cannot be opened say why."""
        described: list[dict[str, Any]] = []
        for name in self.names():
            try:
                described.append(self.get(name).describe())
            except UnknownNameError:
                continue  # deleted since the names were read
            except Exception as error:
                state = "owned elsewhere" if isinstance(error, ConflictError) else "unavailable"
                described.append({"name": name, "state": state, "error": as_service_error(error).message})
        return described


def require_there(folder: Path) -> None:
    """Raise `UnknownNameError` if an index's folder went while its lock was waited for."""
    if not (folder / "record.db").exists():
        raise UnknownNameError(f"the index {folder.name} was deleted", param="name")


def require_same(name: str, there: IndexSpec, asked: Mapping[str, Any]) -> None:
    """Raise `ConflictError` if an index has other settings than asked, naming them."""
    has = there.json()
    differ = [f"{key} {has[key]} (asked: {value})" for key, value in asked.items() if has[key] != value]
    if differ:
        raise ConflictError(
            f"the index {name} is there with {', '.join(differ)}: reindex it, or delete it first", param="name"
        )


def sweep(root: Path) -> None:
    """Remove what a killed creation, restoration or deletion left an hour ago."""
    for folder in root.glob(".*.*") if root.is_dir() else ():
        if folder.is_dir() and time.time() - folder.stat().st_mtime > SWEPT_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)


def without_record(root: Path) -> list[str]:
    """Return the names of folders that would be indexes if they had a record."""
    there = root.iterdir() if root.is_dir() else ()
    return [f.name for f in there if is_name(f.name) and f.is_dir() and not (f / "record.db").exists()]


def index_folders(root: Path) -> list[Path]:
    """The folders of all indexes, by name."""
    if not root.is_dir():
        return []
    return sorted(f for f in root.iterdir() if is_name(f.name) and (f / "record.db").exists())
