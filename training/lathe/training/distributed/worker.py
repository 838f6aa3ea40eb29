"""Worker process that encodes shards and computes moments. Ray starts and calls it; nothing here depends on Ray."""

import os
import platform
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import EngineError
from lathe.training.fitting.encoded_shards import encode_shard
from lathe.training.fitting.stacked import StackedVectors, VectorFile
from lathe.training.sources.shards import Shard, is_path, open_local_copy
from lathe.transforms.chain import Chain, deserialize_chain
from lathe.transforms.statistics import block_moments, normalize_in_float64
from lathe.transforms.vectors import as_numpy

NAME = ".seen-by-workers"
"""Name of the token file."""


@dataclass(frozen=True)
class Token:
    """A random secret in a file, by which a worker checks that it shares a folder with this process.

    Attributes:
        file: path of the token file.
        secret: content of the file. A folder with the same path on another disk has no such file.
    """

    file: Path
    secret: str

    @classmethod
    def write(cls, folder: Path) -> "Token":
        """Write a new random secret to a file in a folder, and return the token."""
        token = cls(folder.absolute() / NAME, secrets.token_hex())
        token.file.write_text(token.secret)
        return token

    def check_visible(self) -> None:
        """Raise `EngineError` unless this machine can read the secret from the token's file and write to its folder."""
        try:
            seen = self.file.read_text() == self.secret and os.access(self.file.parent, os.W_OK)
        except OSError:
            seen = False

        if not seen:
            raise EngineError(
                f"{socket.gethostname()} does not share the folder of the vectors, {self.file.parent}: "
                "LATHE_HOME must be in a folder that all nodes share and may write to"
            )


@dataclass(frozen=True)
class Introduction:
    """Description that a worker sends before it gets tasks.

    Attributes:
        node: host name of the worker's machine.
        pid: id of the worker's process.
        described: versions and encoder, see `describe_environment`.
    """

    node: str
    pid: int
    described: dict[str, Any]


@dataclass(frozen=True)
class Block:
    """A block of rows in files, whose moments a worker computes.

    Attributes:
        parts: files that contain the rows.
        dimensions: dimensions of the rows.
        rows: indices of the rows in the stacked files `(n,)`.
        first: index of the first row among all rows of the fit, for messages.
    """

    parts: Sequence[VectorFile]
    dimensions: int
    rows: NDArray[np.int64]
    first: int


class RayWorker:
    """Worker process that encodes shards and computes moments.

    Args:
        spec: spec of the encoder, which is loaded at the first use; None if no texts are to be encoded.
        prompt_name: name of the default prompt; None for the encoder's default.
        device: torch device of the encoder.
        threads: number of CPU threads of torch.
    """

    def __init__(self, spec: EncoderSpec | None, prompt_name: str | None, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.spec, self.prompt_name, self.device = spec, prompt_name, device
        self.payload: bytes | None = None
        self.chain: Chain | None = None

    @cached_property
    def encoder(self) -> Encoder | None:
        """Encoder of the spec, loaded at the first access, or None without a spec.

        Raises:
            EncoderError: if the encoder cannot be loaded on this machine.
        """
        if self.spec is None:
            return None
        encoder = Encoder(self.spec, self.device)
        return encoder if self.prompt_name is None else encoder.with_default_prompt(self.prompt_name)

    def introduce(self) -> Introduction:
        """Load the encoder, and describe this worker: host name, process id, versions of packages, and encoder."""
        return Introduction(socket.gethostname(), os.getpid(), describe_environment(self.encoder))

    def encode(self, shards: Sequence[Shard], field: str, folders: Sequence[Path], token: Token) -> None:
        """Encode shards of the same file into their folders. Raise `EngineError` if file or folder is not shared.

        A remote file is downloaded once for all shards.

        Args:
            shards: shards of the same file.
            field: the source's field.
            folders: folder of each shard.
            token: token in the run's folder.

        Raises:
            EngineError: if this machine lacks the file, or does not share the folder of the token.
            SourceError, FitError, EngineError: see `encode_shard`.
        """
        # Checked before any text is encoded: vectors in a folder that is not shared would be lost.
        token.check_visible()
        file = shards[0].file
        if is_path(file) and not Path(file).exists():
            raise EngineError(f"{file} is not on {socket.gethostname()}: every node must see the source's files")
        with open_local_copy(file, folders[0]) as opened:
            for shard, folder in zip(shards, folders, strict=True):
                encode_shard(replace(shard, file=str(opened)), field, self.encoder, folder)

    def moments(self, block: Block, chain: bytes | None, unit: bool) -> dict[str, NDArray[Any]]:
        """Compute the moments of a block's rows, after a chain and with `unit` an L2 normalization, as arrays by name.

        Args:
            block: the rows.
            chain: serialized chain that is applied to the rows first; None for no chain.
            unit: whether the rows are L2-normalized after the chain.

        Raises:
            InputError: if a row holds NaN or inf; the message names the row.
        """
        rows: Any = StackedVectors(block.parts, block.dimensions)[block.rows]
        if chain is not None:
            rows = self._load_chain(chain).transform(rows)
        vectors = normalize_in_float64(as_numpy(rows)) if unit else as_numpy(rows)
        # Sums are float64: in float32, sums that are merged over many blocks would lose digits.
        return block_moments(vectors, "float64", block.first).arrays()

    def _load_chain(self, payload: bytes) -> Chain:
        """Deserialize a chain of transforms. The last chain is cached, because many blocks use the same chain."""
        if self.chain is None or payload != self.payload:
            self.payload, self.chain = payload, deserialize_chain(payload)
        return self.chain


def describe_environment(encoder: TextEncoder | None) -> dict[str, Any]:
    """Return what must be equal in all processes of a fit: versions of packages and Python, and the encoder.

    The versions are by package name, `python` has the version of Python, and `encoder` the encoder's description, or
    None.
    """
    packages = ("lathe-training", "torch", "numpy", "transformers", "tokenizers", "sentence-transformers")
    about = {package: version(package) for package in packages} | {"python": platform.python_version()}
    return about | {"encoder": None if encoder is None else encoder.describe()}
