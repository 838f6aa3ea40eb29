"""Pushing and downloading of files of model repositories on the Hugging Face Hub.

The library reads `HF_TOKEN`, or the token that `hf auth login` stored; it is never printed. `HF_ENDPOINT` names another
hub.
"""

import os
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from lathe.service.errors import (
    BadValueError,
    ForbiddenError,
    ServiceError,
    TooLargeError,
    UnavailableError,
    UnknownNameError,
)

CLIENT_NOTES_BYTES = 1_000_000
"""Bytes beyond its own that a download may write to a file: what the hub's client notes about it."""

MAX_REASON = 200
"""Maximum characters of the library's messages that an error quotes."""


@dataclass(frozen=True)
class HubRepo:
    """A model repository at one commit.

    Attributes:
        id: `owner/name`.
        commit: SHA of the commit, which a revision such as a branch stood for when the repository was opened.
        sizes: bytes of each file, by its path in the repository.
    """

    id: str
    commit: str
    sizes: Mapping[str, int]

    @classmethod
    def open(cls, repo: str, revision: str | None = None) -> "HubRepo":
        """Look up a model repository on the hub, with the commit and the file sizes of a revision.

        Args:
            repo: `owner/name`.
            revision: branch, tag or commit; None for the default branch.

        Raises:
            BadValueError: if `repo` is not a repository id.
            UnknownNameError: if there is no such repository or revision, or the token may not read it.
            UnavailableError: if the hub cannot be reached.
        """
        with _explained_errors(repo):
            info = _connect().model_info(repo, revision=revision, files_metadata=True)
        return cls(repo, str(info.sha), {file.rfilename: file.size or 0 for file in info.siblings or []})

    def download(self, names: Iterable[str], folder: Path, max_bytes: int) -> None:
        """Download files of the repository to a folder, under their paths. Raise `TooLargeError` over `max_bytes`.

        Args:
            names: paths in the repository.
            folder: an existing folder, which the caller deletes after an error.
            max_bytes: maximum bytes of all the files together.

        Raises:
            BadValueError: if a path leads out of the folder, or a file is not what the hub said.
            UnknownNameError: if the repository has no such file.
            TooLargeError: if the files are larger than `max_bytes`; nothing is downloaded.
            UnavailableError: if the connection fails.
        """
        names = list(names)
        for name in names:
            require_inner_path(name)
            if name not in self.sizes:
                raise UnknownNameError(f"{self.id} has no file {name!r}")
        # By what the hub says, before anything is downloaded; each file is checked against it afterwards.
        total = sum(self.sizes[name] for name in names)
        if total > max_bytes:
            raise TooLargeError(
                f"{self.id} takes {total} bytes, more than {max_bytes}: raise --max-bytes if you trust it"
            )
        for name in names:
            with _explained_errors(self.id), _limit_file_size(self.sizes[name]):
                path = _connect().hf_hub_download(self.id, name, revision=self.commit, local_dir=folder)
            size = Path(path).stat().st_size
            if size != self.sizes[name]:
                raise BadValueError(f"{name} of {self.id} has {size} bytes, the hub said {self.sizes[name]}")


def push_files(repo: str, files: Mapping[str, Path | bytes], message: str, private: bool | None = None) -> str:
    """Create a model repository if it is missing, commit files to it, and return the commit's URL.

    Files that the repository has already are skipped, and files of other names are left as they are. If nothing
    changed, the URL is the last commit's.

    Args:
        repo: `owner/name`.
        files: content, or the file that holds it, by path in the repository.
        message: message of the commit.
        private: whether a new repository is private; None is the account's default. An existing one stays as it is.

    Raises:
        BadValueError: if `repo` is not a repository id.
        ForbiddenError: if the token does not allow it, or there is none.
        UnavailableError: if the hub cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd

    with _explained_errors(repo):
        hub = _connect()
        hub.create_repo(repo, private=private, exist_ok=True)
        operations = [CommitOperationAdd(name, content) for name, content in sorted(files.items())]
        return str(hub.create_commit(repo, operations, commit_message=message).commit_url)


@contextmanager
def _limit_file_size(size: int) -> Iterator[None]:
    """Limit the files that this process writes in the block to `size` bytes and a margin. Larger files fail.

    The hub's client writes whatever a server sends. A write beyond the limit raises `OSError`.
    """
    # Python ignores SIGXFSZ: a write past the limit fails with EFBIG, and does not kill the process.
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    limit = size + CLIENT_NOTES_BYTES
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit if soft == resource.RLIM_INFINITY else min(limit, soft), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def require_inner_path(name: str) -> None:
    """Raise `BadValueError` if a path in a repository could lead out of the folder that it is downloaded to."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or str(path) != name or name == ".":
        raise BadValueError(f"{name[:80]!r} is not a path of a file below the repository's folder")


def _connect() -> Any:
    """Create a client for the hub at `HF_ENDPOINT`, or for the public hub. Progress bars need a terminal.

    The library itself reads that variable only once, when it is imported.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)


@contextmanager
def _explained_errors(repo: str) -> Iterator[None]:
    from httpx2 import TransportError
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise BadValueError(f"{repo[:80]!r} is not a repository of the hub, such as owner/name") from error
    except errors.GatedRepoError as error:
        raise ForbiddenError(f"{repo} is gated: accept its terms on the hub, and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownNameError(
            f"the hub has no repository {repo}, or shows it only to those who may see it: HF_TOKEN holds a token"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise UnknownNameError(f"{repo} has no such revision") from error
    except errors.OfflineModeIsEnabled as error:
        raise UnavailableError(f"{repo} is not asked for while HF_HUB_OFFLINE is set") from error
    except (TransportError, errors.LocalEntryNotFoundError, ConnectionError) as error:
        raise UnavailableError(f"the hub cannot be reached for {repo}: {_format_reason(error)}") from error
    except errors.HfHubHTTPError as error:
        raise _convert_status(repo, error) from error
    except (ValueError, RuntimeError, OSError, LookupError, TypeError, AttributeError) as error:
        # A file that was cut off or has no end, or an answer that makes no sense.
        raise UnavailableError(f"{repo} cannot be read or written: {_format_reason(error)}") from error


def _convert_status(repo: str, error: Any) -> ServiceError:
    status = error.response.status_code
    if status in (401, 403):
        return ForbiddenError(f"the hub does not allow this on {repo}: set HF_TOKEN to a token that may write there")
    return UnavailableError(f"the hub answered {status} for {repo}: {_format_reason(error)}")


def _format_reason(error: Exception) -> str:
    chain_of_errors = [error] if error.__cause__ is None else [error, error.__cause__]
    return ": ".join((str(e).strip().splitlines() or [type(e).__name__])[0][:MAX_REASON] for e in chain_of_errors)
