"""Worker that encodes shards and computes moments in its own process.

It is independent of Ray, which starts and calls it.
"""

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
    """A random secret in a file, by which a worker recognizes that it sees the same folder as this process.

    Attributes:
        file: path of the token file.
        secret: content of the file; a folder with the same path on another disk does not hold it.
    """

    file: Path
    secret: str

    @classmethod
    def write(cls, folder: Path) -> "Token":
        """Write a file with a new secret into a folder, and return the token with its path and secret."""
        token = cls(folder.absolute() / NAME, secrets.token_hex())
        token.file.write_text(token.secret)
        return token

    def check_visible(self) -> None:
        """Check that this machine can read the token's file with the same secret, and write to its folder.

        Raises:
            EngineError: if it cannot, with the name of this machine.
        """
        try:
            seen = self.file.read_text() == self.secret and os.access(self.file.parent, os.W_OK)
        except OSError:
            seen = False

        if not seen:
            raise EngineError(
                f"{socket.gethostname()} cannot write where the vectors go, {self.file.parent}: "
                "LATHE_HOME must lie in a folder that all nodes share"
            )


@dataclass(frozen=True)
class Introduction:
    """Description of a worker, which it sends before it is given work.

    Attributes:
        node: host name of its machine.
        pid: id of its process.
        described: versions and encoder, see `describe_environment`.
    """

    node: str
    pid: int
    described: dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Rows whose moments a worker computes.

    Attributes:
        parts: the files that contain the rows.
        dimensions: dimensions of the rows.
        rows: indices of the rows in these files `(n,)`.
        first: index of the first row among all fitted rows, for messages.
    """

    parts: Sequence[VectorFile]
    dimensions: int
    rows: NDArray[np.int64]
    first: int


class RayWorker:
    """Worker process that encodes shards and computes moments.

    Args:
        spec: spec of the encoder, which is loaded when first needed; None if nothing is to be encoded.
        prompt_name: name of the prompt for all texts; None for none.
        device: device of the encoder.
        threads: CPU threads that torch may use.
    """

    def __init__(self, spec: EncoderSpec | None, prompt_name: str | None, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.spec, self.prompt_name, self.device = spec, prompt_name, device
        self.payload: bytes | None = None
        self.chain: Chain | None = None

    @cached_property
    def encoder(self) -> Encoder | None:
        """Encoder of the spec, or None without a spec.

        It is loaded at first use, which takes seconds.

        Raises:
            EncoderError: if it cannot be loaded here.
        """
        if self.spec is None:
            return None
        encoder = Encoder(self.spec, self.device)
        return encoder if self.prompt_name is None else encoder.with_default_prompt(self.prompt_name)

    def introduce(self) -> Introduction:
        """Load the encoder, and return the host name, the process id, and the versions of packages and encoder."""
        return Introduction(socket.gethostname(), os.getpid(), describe_environment(self.encoder))

    def encode(self, shards: Sequence[Shard], field: str, folders: Sequence[Path], token: Token) -> None:
        """Encode shards of one file into their folders.

        A remote file is downloaded once for all of them.

        Args:
            shards: shards of the same file.
            field: the source's field.
            folders: folder of each shard.
            token: token in the run's folder.

        Raises:
            EngineError: if this machine does not see the file, or the folder of the token.
            SourceError, FitError, EngineError: see `encode_shard`.
        """
        # Before any text is encoded: a folder that is not shared would lose the vectors.
        token.check_visible()
        file = shards[0].file
        if is_path(file) and not Path(file).exists():
            raise EngineError(f"{file} is not on {socket.gethostname()}: every node must see the source's files")
        with open_local_copy(file, folders[0]) as opened:
            for shard, folder in zip(shards, folders, strict=True):
                encode_shard(replace(shard, file=str(opened)), field, self.encoder, folder)

    def moments(self, block: Block, chain: bytes | None, unit: bool) -> dict[str, NDArray[Any]]:
        """Compute the moments of a block's rows, and return their arrays by name.

        Args:
            block: the rows.
            chain: serialized chain applied to the rows first; None for none.
            unit: whether the rows are then L2-normalized.

        Raises:
            InputError: if a row holds NaN or inf; names the row.
        """
        rows: Any = StackedVectors(block.parts, block.dimensions)[block.rows]
        if chain is not None:
            rows = self._load_chain(chain).transform(rows)
        vectors = normalize_in_float64(as_numpy(rows)) if unit else as_numpy(rows)
        # Sums are float64: merged over many blocks, they would lose digits in float32.
        return block_moments(vectors, "float64", block.first).arrays()

    def _load_chain(self, payload: bytes) -> Chain:
        """Return the chain of transforms in `payload`, with the last one cached, because many blocks use the same."""
        if self.chain is None or payload != self.payload:
            self.payload, self.chain = payload, deserialize_chain(payload)
        return self.chain


def describe_environment(encoder: TextEncoder | None) -> dict[str, Any]:
    """Return the versions of packages and of Python by name, with the encoder's description under `encoder`.

    All processes of a fit must agree in them.
    """
    packages = ("lathe-training", "torch", "numpy", "transformers", "tokenizers", "sentence-transformers")
    about = {package: version(package) for package in packages} | {"python": platform.python_version()}
    return about | {"encoder": None if encoder is None else encoder.describe()}
