"""What a worker does, on whatever machine it runs. It knows no Ray, which starts it and carries what it is told."""

import os
import platform
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

from training.distributed.token import Token
from training.encoder.encoder import Encoder
from training.encoder.spec import EncoderSpec
from training.errors import EngineError
from training.fitting.encoded_shards import encode_shard
from training.fitting.stacked import Part, Stacked
from training.sources.readers import BUILT_IN
from training.sources.remote import is_remote
from training.sources.shards import Shard, at_hand
from transforms.chain import Chain, deserialize_chain
from transforms.statistics import at_unit_length, block_moments
from transforms.vectors import as_numpy


@dataclass(frozen=True)
class Introduction:
    """What a worker says of itself before it is given work.

    Attributes:
        node: the name of its machine.
        pid: of its process.
        described: see `describe`.
    """

    node: str
    pid: int
    described: dict[str, Any]


@dataclass(frozen=True)
class Block:
    """Rows to take the moments of.

    Attributes:
        parts: the files they lie in.
        width: of the rows.
        rows: their numbers in these files `(n,)`.
        first: the number of the first among all that are fitted on, for messages.
    """

    parts: Sequence[Part]
    width: int
    rows: NDArray[np.int64]
    first: int


class Worker:
    """Encodes shards and takes moments.

    Args:
        spec: of the encoder, which is loaded when it is first wanted; None where nothing is to be encoded.
        device: of the encoder.
        threads: that torch may use.
    """

    def __init__(self, spec: EncoderSpec | None, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.spec, self.device = spec, device
        self.payload: bytes | None = None
        self.chain: Chain | None = None

    @cached_property
    def encoder(self) -> Encoder | None:
        """The encoder; loading it takes seconds.

        Raises:
            EncoderError: if it cannot be loaded here.
        """
        return None if self.spec is None else Encoder(self.spec, self.device)

    def introduce(self) -> Introduction:
        """Load everything, and say what that is."""
        return Introduction(socket.gethostname(), os.getpid(), describe(self.encoder))

    def encode(self, shards: Sequence[Shard], field: str, folders: Sequence[Path], token: Token) -> None:
        """Encode shards of one file, each into its folder; the file is fetched once if it is elsewhere.

        Raises:
            EngineError: if the file or the folder of the token is not here.
            SourceError, FitError, EngineError: see `encode_shard`.
        """
        token.require_seen()
        file = shards[0].file
        if not (is_remote(file) or file in BUILT_IN or Path(file).exists()):
            raise EngineError(f"{file} is not on {socket.gethostname()}: every node must see the source's files")
        with at_hand(file, folders[0]) as found:
            for shard, folder in zip(shards, folders, strict=True):
                encode_shard(replace(shard, file=str(found)), field, self.encoder, folder)

    def moments(self, block: Block, chain: bytes | None, unit: bool) -> dict[str, NDArray[Any]]:
        """The moments of a block behind a packed chain, of its rows at unit length if so asked; as their arrays.

        Raises:
            InputError: for NaN or inf, naming the row.
        """
        rows: Any = Stacked(block.parts, block.width)[block.rows]
        if chain is not None:
            rows = self.restored(chain).transform(rows)
        found = at_unit_length(as_numpy(rows)) if unit else as_numpy(rows)
        return block_moments(found, "float64", block.first).arrays()

    def restored(self, payload: bytes) -> Chain:
        """A packed chain; the last one is kept, since many blocks go through it."""
        if self.chain is None or payload != self.payload:
            self.payload, self.chain = payload, deserialize_chain(payload)
        return self.chain


def describe(encoder: Encoder | None) -> dict[str, Any]:
    """What must be the same in every process that works on one fit."""
    packages = ("lathe", "torch", "numpy", "transformers", "tokenizers", "sentence-transformers")
    about = {package: version(package) for package in packages} | {"python": platform.python_version()}
    return about | {"encoder": None if encoder is None else encoder.describe()}
