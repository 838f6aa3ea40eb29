"""The chain registry on disk: immutable versions, a mutable live pointer, size routes, and changes to them.

The folder is laid out as `lathe.service.chains.version_folder` says; versions are artifacts, see
`lathe.transforms.artifact`. Any number of processes may read and write: versions appear and pointers change by a
rename.

Beside the folder are the size routes, which say what chain answers a request for `dimensions: d`, for each encoder:

size_routes.json: {<encoder fingerprint>: {"128": "compact", "nested": "compact"}}

A nested chain can have the route `nested`, for all sizes without a route of their own. Routes change by an explicit
request alone: a fit, a promotion or a deletion changes no answer to a request for dimensions.

Starter chains ship with Lathe and are installed in a registry.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cachetools import LRUCache
from filelock import FileLock

from lathe.service.chains.loaded_chain import (
    NO_FILE,
    FileStamp,
    LoadedChain,
    get_file_stamp,
    load_chain,
    require_fit_fields,
)
from lathe.service.chains.names import parse_number, require_name, split_ref
from lathe.service.chains.version_folder import VersionFolder
from lathe.service.errors import BadValueError, UnknownNameError, shorten
from lathe.training.locks import lock_file
from lathe.transforms.artifact import (
    DISTRIBUTION,
    MANIFEST,
    TENSORS,
    Manifest,
    read_file,
    read_manifest,
    read_serialized_artifact,
)
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import make_folder, make_root, read_json_file, replace_synced, write_synced

if TYPE_CHECKING:
    from lathe.transforms.artifact import FitDistribution
    from lathe.transforms.chain import Chain

MAX_LOADED = 64
"""Maximum number of chains kept in memory, least recently used ones dropped; one of 4096 × 1024 floats is 16 MB."""


class Registry(VersionFolder):
    """The chains of transforms in one folder, with a cache of those that were loaded, and changes to them.

    Args:
        root: the folder.
        shipped: whether the folder is part of the installed package, whose files may be links to anywhere; otherwise no
            link may lead out of the folder.

    Attributes:
        size_routes: which chain answers a request for a number of dimensions; their file is beside the folder, or in it
            if it is part of the installed package.
    """

    def __init__(self, root: Path, shipped: bool = False) -> None:
        super().__init__(root, shipped)
        self.size_routes = SizeRoutes((root if shipped else root.parent) / "size_routes.json", self)
        self.loaded: LRUCache[tuple[str, int], LoadedChain] = LRUCache(MAX_LOADED)
        self.pointers: dict[str, tuple[FileStamp, int | None]] = {}
        self.loading = threading.Lock()
        self.cache_lock = threading.Lock()  # held for moments; a disk is read under `loading`

    def read(self, name: str, version: int) -> "Chain":
        """Load a version of a chain of transforms from disk, bypassing the cache in memory.

        Raises:
            ArtifactError: if its files are damaged.
        """
        return load_chain(self.root / name / str(version), self.links_within)

    def read_files(self, name: str, version: int) -> tuple[bytes, bytes]:
        """Read `(manifest.json, chain.safetensors)` of a version as bytes, without checking them.

        Raises:
            OSError: if the files cannot be read.
        """
        folder = self.root / name / str(version)
        return read_file(folder, MANIFEST, self.links_within), read_file(folder, TENSORS, self.links_within)

    def get_loaded(self, ref: str) -> LoadedChain | None:
        """Return the chain of a reference from memory, or None if it is not loaded, has changed files, or is not live.

        A bare name means the live version, which is remembered and read again if the pointer file changes.
        """
        name, version = split_ref(ref)
        if version is None:
            stamp, live = self.pointers.get(name, (NO_FILE, None))
            now = get_file_stamp(self.root / name / "pointer.json")
            # Another process may have moved the pointer.
            if now != stamp:
                live = self.live(name)
                self.pointers[name] = now, live
            version = live
        return None if version is None else self._get_unchanged(name, version)

    def _get_unchanged(self, name: str, version: int) -> LoadedChain | None:
        """Return a version from memory, or None if it is not loaded or its files have changed."""
        with self.cache_lock:
            chain = self.loaded.get((name, version))
        return chain if chain is not None and chain.file_stamp == get_file_stamp(chain.folder) else None

    def load(self, ref: str) -> LoadedChain:
        """Return the chain of a reference such as `name@2` from memory, or load it from disk if its files changed.

        A chain read from disk is kept in memory. Beyond `MAX_LOADED` chains, the least recently used chain is dropped.

        Raises:
            UnknownNameError: if there is no such chain or version, or none is live.
            ArtifactError: if its files are damaged.
        """
        if (cached := self.get_loaded(ref)) is not None:
            return cached
        name, version = self.resolve(ref)
        # One load at a time: several threads would otherwise read the same files, and each hold a copy.
        with self.loading:
            chain = self._get_unchanged(name, version)  # another thread may have loaded it meanwhile
            if chain is None:
                folder = self.root / name / str(version)
                chain = LoadedChain(name, version, self.read(name, version), folder)
                with self.cache_lock:
                    self.loaded[name, version] = chain
        return chain

    def manifest(self, name: str, version: int) -> Manifest:
        """Read the manifest of a chain's version, and check its fields. Raise `ArtifactError` if it is damaged.

        Raises:
            ArtifactError: if the manifest is damaged.
        """
        folder = self.root / name / str(version)
        manifest = read_manifest(folder, self.links_within)
        require_fit_fields(folder, manifest)
        return manifest

    def publish(
        self,
        chain: "Chain",
        name: str,
        promote: bool | None,
        job: str | None = None,
        distribution: "FitDistribution | None" = None,
    ) -> tuple[int, bool]:
        """Save a fitted chain as the next version of its name, and return `(version, whether it is live)`.

        Args:
            chain: its metadata becomes the manifest's.
            name: name of the chain.
            promote: whether to make the version live; None does so if no version is live.
            job: id of the job that fitted the chain; in Redis, a job that runs twice publishes once.
            distribution: distribution of the rows the chain was fitted on, stored in the version's folder.

        Raises:
            BadValueError: if the name is not valid.
        """
        require_name(name)

        def write(folder: Path, version: int) -> None:
            chain.save(folder, {"name": name, "version": version}, distribution)

        return self.add_version(name, promote, job, write)

    def check_version(self, name: str, version: int) -> Manifest:
        """Load a version of a chain from disk, which checks its files, and return its manifest.

        Raises:
            ArtifactError: if its files are damaged.
        """
        return self.read(name, version).metadata

    def import_chain(self, name: str, source: "Registry") -> bool:
        """Copy a chain with all versions from another registry, unless it has a pointer here. Return whether it did.

        A pointer may be left from versions that were deleted.

        Raises:
            ArtifactError: if a version or the pointer is damaged.
        """
        return self.copy_chain(name, source, load_chain)

    def copy_chain(self, name: str, source: "Registry", check: Callable[[Path, Path | None], object]) -> bool:
        """Copy a chain with all versions from another registry, unless it has a pointer here. Return whether it did.

        Versions that exist here are left as they are.

        Args:
            name: name of the chain.
            source: registry that has it.
            check: reads and checks an artifact folder, and raises if it is damaged.
        """
        if (self.root / name / "pointer.json").exists():
            return False
        with self.lock(name):
            for version in source.versions(name):
                folder = source.root / name / str(version)
                check(folder, source.links_within)
                if not (self.root / name / str(version)).exists():
                    with self.stage_version(name, version) as staging:
                        _copy_artifact(folder, staging, source.links_within)
            self.write_pointer(name, source.read_pointer(name))
        return True

    def remove_folder(self, name: str, version: int) -> None:
        """Delete a version's folder and drop the version from memory. The caller holds the chain's lock."""
        super().remove_folder(name, version)
        with self.cache_lock:
            self.loaded.pop((name, version), None)


def _copy_artifact(source: Path, target: Path, root: Path | None) -> None:
    """Copy the manifest, tensors and fit distribution of an artifact folder to a new folder, where they exist.

    With a `root`, no link in `source` may lead out of that folder.
    """
    make_folder(target)
    for name in (TENSORS, DISTRIBUTION, MANIFEST):
        with suppress(FileNotFoundError):  # not every fit leaves a fit distribution
            write_synced(target / name, read_file(source, name, root))


NESTED = "nested"


def parse_size_routes(content: Any) -> dict[str, str]:
    """Check one encoder's size routes, read from JSON, and return a copy. Raise `ValueError` for a wrong route.

    A key is a number of dimensions as text, or "nested", for all sizes to which a nested chain can be truncated.

    Raises:
        ValueError, AttributeError: if a key is not a size or a value not a string, or it is not an object.
    """
    for route, ref in content.items():
        if not isinstance(ref, str) or not (route == NESTED or parse_number(route)):
            raise ValueError(f"{route!r} cannot be a size route of {ref!r}")
    return dict(content)


class SizeRoutes:
    """The size routes of all encoders, in one JSON file: which chain answers a request for a number of dimensions."""

    def __init__(self, path: Path, chains: Registry) -> None:
        self.path = path
        self.chains = chains
        self.cached: tuple[tuple[int, int], dict[str, dict[str, str]]] = ((0, 0), {})

    def read(self) -> dict[str, dict[str, str]]:
        """Read the size routes from disk, as `{encoder fingerprint: {dimensions: chain}}`, or {} without a file.

        The key "nested" stands for all dimensions to which a nested chain can be truncated.

        Raises:
            ArtifactError: if the file is damaged.
        """
        try:
            content = read_json_file(self.path)
            return {str(encoder): parse_size_routes(size_routes) for encoder, size_routes in content.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise ArtifactError(f"{self.path.name} cannot be read: {error!r}") from error

    def get_current(self) -> dict[str, dict[str, str]]:
        """Return all size routes from memory, and read them again if the file changed. Do not modify the result."""
        stamp = get_file_stamp(self.path)
        # The stamp is taken first: a file that is replaced while it is read is read again by the next call.
        if stamp != self.cached[0]:
            self.cached = stamp, self.read()
        return self.cached[1]

    def find_problem(self) -> str | None:
        """Return a sentence that says why the file of size routes cannot be read, or None if it can be read."""
        try:
            self.get_current()
        except ArtifactError as error:
            return f"{shorten(str(error))}; no chain answers `dimensions` until the file is repaired or deleted"
        except OSError as error:
            return f"{self.path.name} cannot be read: {error.strerror}; no chain answers `dimensions`"
        return None

    def assign(self, encoder_fingerprint: str, route: str, ref: str, replace: bool) -> str:
        """Set the chain that answers an encoder's requests for a number of dimensions, or keep the old chain.

        Returns the chain that answers now.

        Args:
            encoder_fingerprint: encoder whose vectors the chain takes.
            route: number of dimensions, or `NESTED`, for all that a nested chain can be cut to.
            ref: chain, as `name` or `name@version`.
            replace: whether to replace a chain that the route leads to already. It is always replaced if it was
                deleted or does not give these dimensions.
        """
        with self.lock():
            # Read under the lock, as another process may have set a route meanwhile.
            size_routes = self.read()
            encoder_routes = size_routes.setdefault(encoder_fingerprint, {})
            if not replace and self.find_chain(encoder_routes, route) is not None:
                return encoder_routes[route]
            encoder_routes[route] = ref
            replace_synced(self.path, json.dumps(size_routes, indent=1).encode(), private=True)
        return ref

    def lock(self) -> FileLock:
        """Create the folder of the size routes, and return the file lock for changes, which is not acquired yet."""
        make_root(self.path.parent)
        return lock_file(self.path.with_name(f".{self.path.name}.lock"))

    def serve_dimensions(self, name: str) -> list[str]:
        """Make a chain answer all requests for its output dimensions, and return its size routes.

        The routes are a list such as `["128", "nested"]`. The number of dimensions comes from the live version. A
        nested chain also gets the route `nested`. The list is empty if no version is live or it cannot be read, was
        fitted without an encoder, or keeps all dimensions. Requests that got another chain for these dimensions get
        this one, so this is called only when a user asked for it.
        """
        try:
            loaded = self.chains.load(name)
        except (UnknownNameError, ArtifactError):
            return []
        fingerprint, size = loaded.encoder_fingerprint, loaded.output_dimensions
        # A request for the encoder's own dimensions means its raw vectors, so no chain can have that route.
        if fingerprint is None or size is None or size == loaded.input_dimensions:
            return []
        routes = [str(size), NESTED] if loaded.nested else [str(size)]
        return [route for route in routes if self.assign(fingerprint, route, name, replace=True) == name]

    def import_route(self, encoder_fingerprint: str, route: str, ref: str) -> str | None:
        """Copy a size route from another state folder if it is free here, and return the chain that then has it.

        The route stays free, and None comes back, if `ref` is missing here, does not serve it, or was not fitted on
        this encoder.

        Args:
            encoder_fingerprint: encoder whose vectors the chain takes.
            route: number of dimensions, or `NESTED`.
            ref: the chain.
        """
        encoder_routes = self.read().get(encoder_fingerprint, {})
        if self.find_chain(encoder_routes, route) is None:
            loaded = self.find_chain({route: ref}, route)
            if loaded is None or loaded.encoder_fingerprint != encoder_fingerprint:
                return None
        return self.assign(encoder_fingerprint, route, ref, replace=False)

    def find_ref(self, encoder_fingerprint: str, dimensions: int) -> str | None:
        """Return the chain registered for this number of dimensions, else the one registered as `nested`, else None."""
        size_routes = self.get_current().get(encoder_fingerprint, {})
        return size_routes.get(str(dimensions)) or size_routes.get(NESTED)

    def find_chain_for(self, encoder_fingerprint: str, dimensions: int, encoder_dimensions: int) -> LoadedChain:
        """Return the loaded chain that answers an encoder's requests for a number of dimensions.

        The size route for the number comes before the route `nested`.

        Args:
            encoder_fingerprint: encoder whose vectors the chain takes.
            dimensions: number of dimensions.
            encoder_dimensions: the encoder's own number of dimensions, for the message.

        Raises:
            BadValueError: if no chain serves the size; the message lists the sizes that are served.
        """
        size_routes = self.get_current().get(encoder_fingerprint, {})
        for route in (str(dimensions), NESTED):
            loaded = self.find_chain(size_routes, route)
            if loaded is not None and loaded.serves(dimensions):
                return loaded
        sizes = ", ".join([*self._describe_sizes(size_routes), f"{encoder_dimensions}, the encoder's own width"])
        raise BadValueError(f"no chain answers {dimensions} dimensions; there are {sizes}", param="dimensions")

    def find_chain(self, size_routes: dict[str, str], route: str) -> LoadedChain | None:
        """Load the chain of one size route and return it.

        Returns None if there is no route, or its chain is deleted or lacks the size.
        """
        if route not in size_routes:
            return None
        try:
            loaded = self.chains.load(size_routes[route])
        except UnknownNameError:
            return None
        serves = loaded.nested if route == NESTED else loaded.serves(int(route))
        return loaded if serves else None

    def _describe_sizes(self, size_routes: dict[str, str]) -> list[str]:
        """List the dimensions that size routes serve, such as "any from 1 to 128" for a nested chain, then "256"."""
        nested = self.find_chain(size_routes, NESTED)
        largest = nested.output_dimensions or 0 if nested else 0
        exact = sorted(int(route) for route in size_routes if route != NESTED and self.find_chain(size_routes, route))
        descriptions = [str(size) for size in exact if size > largest]
        return [f"any from 1 to {largest}", *descriptions] if largest else descriptions


STARTERS = Path(__file__).parent / "starter_chains"
"""Folder of the registry of starter chains, `<name>/1/`, fitted by `make starters`."""


def install_starters(registry: Registry) -> None:
    """Copy the chains that ship with Lathe to a registry, except those whose name was ever used there.

    The copied chains also get the size routes listed in a file next to the starter chains, where these routes are free.
    In a local replica of a Redis the chains are copied to the replica only. A new Redis gets them from there. If the
    registry's file of size routes is damaged, no routes are assigned: the server starts, and its health reports it.

    Raises:
        OSError: if the registry cannot be written.
    """
    shipped = Registry(STARTERS, shipped=True)
    # Their digests are checked without importing torch, which loading a chain takes.
    check = read_serialized_artifact
    installed = [name for name in shipped.names() if registry.copy_chain(name, shipped, check)]
    for encoder, named in shipped.size_routes.read().items():
        for route, name in named.items():
            if name in installed:
                with suppress(ArtifactError):
                    registry.size_routes.assign(encoder, route, name, replace=False)
