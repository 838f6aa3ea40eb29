"""Worker process that owns a model, started by `dispatcher`: `python -m lathe.service.encoders.engine.worker FD`.

        receiving thread                      main thread
  FD ──► read ──► tokenize ──► queue of two ──► model ──► chain ──► FD

Tokenization thus overlaps with the model's computation. On a GPU, the reply to a message is also built and sent while
the GPU computes the next message.

message   what the server sends at once: a list of parts; the reply has a header entry and arrays for each part
part      texts of one request, with the options of the encoding and the chain of transforms to apply
group     all parts of a message with equal options, which share batches: `Tokenized`, then `_ComputedGroup`
piece     text, or a chunk of a long text, that the model reads at once

If a group fails, its parts are encoded alone, so that only the part with the bad text is answered with an error.
"""

import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import accumulate
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cachetools import LRUCache
from numpy.typing import NDArray

from lathe.service import logs
from lathe.service.chains.folded_forms import FoldedForms
from lathe.service.encoders.engine import framing
from lathe.training.encoder.batching import Batch, HostCopy, move_to_device
from lathe.training.encoder.devices import PROBES
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.long_texts import MAX_LONG_TOKENS, Pieces
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import check_finite
from lathe.training.errors import EncoderError, NotFiniteError, TooLongError
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError

EXPECTED_ERRORS = (TooLongError, NotFiniteError, EncoderError, ArtifactError)
"""Exceptions whose messages are sent to the caller. For other exceptions, only the class is sent."""
MAX_CHAINS = 64
"""Maximum number of folded chains of transforms cached on the device."""

PartReply = tuple[dict[str, Any], list[framing.Array]]
"""Header entry and arrays of a part, or the header of a reply and the arrays of all parts."""

log = logging.getLogger(__name__)


@dataclass
class Tokenized:
    """Group of parts with equal options as tokenized batches, or the error that prevented this.

    Attributes:
        parts: the parts as JSON.
        positions: positions of the parts in the message.
        pieces: texts of all parts, divided into the pieces that the model reads.
        batches: tokenized pieces; empty if there is an error.
        error: why the texts cannot be tokenized; None if they were.
    """

    parts: list[dict[str, Any]]
    positions: list[int]
    pieces: Pieces
    batches: list[Batch]
    error: Exception | None = None

    @property
    def lengths(self) -> list[int]:
        """Number of texts of each part."""
        return [len(part["texts"]) for part in self.parts]


@dataclass(frozen=True)
class _ComputedGroup:
    """Vectors of a group's texts, which a GPU may still be computing and copying.

    Attributes:
        raw: vectors `(n, d)` before the chains of transforms.
        transformed: for each part the vectors `(n, k)` after its chain, the chain's error, or None without a chain.
        tokens: number of tokens of each text that the model reads, `(n,)`.
        cut: number of tokens of each text that the model does not read, `(n,)`.
    """

    raw: HostCopy
    transformed: list[HostCopy | Exception | None]
    tokens: NDArray[np.int64]
    cut: NDArray[np.int64]


@dataclass(frozen=True)
class _BegunMessage:
    """Message whose vectors are being computed.

    Attributes:
        groups: tokenized groups of the message.
        computed: vectors of each group, or the error that prevented them.
        begun: time at which the computation began, in seconds of `perf_counter`.
    """

    groups: list[Tokenized]
    computed: list[_ComputedGroup | Exception]
    begun: float


class Worker:
    """Encoder in a worker process, with a cache of the chains of transforms that requests apply.

    A message is encoded in two steps, `begin_message` and `finish_message`. A GPU may compute between them.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.tokenizing = threading.Lock()
        self.finished = 0.0  # time at which the last message was finished
        self.chains: LRUCache[tuple[str, str], FoldedForms] = LRUCache(MAX_CHAINS)

    def tokenize(self, parts: list[dict[str, Any]]) -> list[Tokenized]:
        """Tokenize the parts of a message, and return a group of batches for each set of equal options.

        Errors are not raised but stored in the groups.
        """
        # Only parts with equal options can share batches, because options change what the model reads.
        groups: dict[tuple[Any, ...], list[int]] = {}
        for position, part in enumerate(parts):
            groups.setdefault(tuple(part["options"].values()), []).append(position)
        return [
            self._tokenize_group([parts[position] for position in positions], positions)
            for positions in groups.values()
        ]

    def _tokenize_group(self, parts: list[dict[str, Any]], positions: list[int]) -> Tokenized:
        """Tokenize parts with equal options into a group of batches for the model. An error is stored in the group.

        With `long_text` "error", a text that is too long is an error. `positions` are the parts' positions in the
        message.
        """
        options = parts[0]["options"]
        try:
            prompt = self.encoder.prompt(options["prompt_name"])
            encoder = self.encoder.route(options["prompt_name"])
            texts = [text for part in parts for text in part["texts"]]
            with self.tokenizing:  # a tokenizer is not thread-safe
                text_positions = [position for part in parts for position in part["positions"]]
                pieces = encoder.divide(texts, prompt, options["long_text"], text_positions, MAX_LONG_TOKENS)
                batches = encoder.tokenize(pieces.texts, prompt, options["truncation_side"])
            return Tokenized(parts, positions, pieces, batches)
        except Exception as error:
            return Tokenized(parts, positions, Pieces.whole([]), [], error)

    def encode_message(self, groups: list[Tokenized]) -> PartReply:
        """Encode the tokenized groups of a message, and return header and arrays of the reply in part order."""
        return self.finish_message(self.begin_message(groups))

    @torch.inference_mode()
    def begin_message(self, groups: list[Tokenized]) -> _BegunMessage:
        """Begin to encode a message. A GPU computes and copies after this returns, a CPU before."""
        begun = time.perf_counter()
        return _BegunMessage(groups, [self._begin_group(group) for group in groups], begun)

    def finish_message(self, message: _BegunMessage) -> PartReply:
        """Wait for the vectors of a message, and return the header and arrays of the reply, in the order of the parts.

        The header also has the sizes of the batches and the seconds of computation.
        """
        replies: dict[int, PartReply] = {}
        for group, computed in zip(message.groups, message.computed, strict=True):
            replies |= self._finish_group(group, computed)
        now = time.perf_counter()
        seconds, self.finished = now - max(message.begun, self.finished), now
        in_order = [replies[position] for position in sorted(replies)]
        batches = [(len(b.rows), int(b.tokens.sum()), b.padded) for group in message.groups for b in group.batches]
        head = {"results": [result for result, _ in in_order], "batches": batches, "seconds": seconds}
        return head, [array for _, arrays in in_order for array in arrays]

    def _begin_group(self, group: Tokenized) -> _ComputedGroup | Exception:
        """Begin to encode a group of parts and to apply their chains of transforms.

        An error is returned and not raised: no text and no chain may end the process, which answers other requests too.
        """
        if group.error is not None:
            return group.error
        try:
            vectors, tokens, cut = self._compute_vectors(group)
            raw = HostCopy.begin(vectors)
            parts: Sequence[torch.Tensor] = vectors.split(group.lengths)  # type: ignore[no-untyped-call]
            transformed = self._apply_chains([part["chain"] for part in group.parts], parts)
        except Exception as error:
            return error
        return _ComputedGroup(raw, transformed, tokens, cut)

    def _finish_group(self, group: Tokenized, computed: _ComputedGroup | Exception) -> dict[int, PartReply]:
        """Wait for a group's vectors, and return the reply to each part, by position in the message.

        If the group failed, its parts are encoded one by one. A part that fails alone is answered with its error.
        """
        try:
            if isinstance(computed, Exception):
                raise computed
            return self._build_replies(group, computed)
        except Exception as error:
            if len(group.parts) == 1:
                return {group.positions[0]: (_describe_error(error), [])}
            return self._encode_each_alone(zip(group.parts, group.positions, strict=True))

    def _build_replies(self, group: Tokenized, computed: _ComputedGroup) -> dict[int, PartReply]:
        """Wait for a group's vectors, and build the reply to each part, by position in the message.

        If a part of several has NaN or inf, it is encoded again alone.

        Raises:
            NotFiniteError: if the only part has vectors that are not finite.
            Exception: that a GPU raises when its vectors are waited for.
        """
        raws = computed.raw.wait()
        finite = bool(np.isfinite(raws).all())  # once for all, because a call for each part takes longer
        if not finite and len(group.parts) == 1:
            check_finite(raws, self.encoder.spec, group.parts[0]["positions"])

        replies: dict[int, PartReply] = {}
        failed: list[tuple[dict[str, Any], int]] = []  # NaN may come from another part's text in the same batch
        ends = accumulate(group.lengths)
        slices = [slice(end - length, end) for length, end in zip(group.lengths, ends, strict=True)]
        for part, position, rows, result in zip(
            group.parts, group.positions, slices, computed.transformed, strict=True
        ):
            if finite or np.isfinite(raws[rows]).all():
                replies[position] = _build_reply(part, result, raws[rows], [computed.tokens[rows], computed.cut[rows]])
            else:
                failed.append((part, position))
        return replies | self._encode_each_alone(failed)

    def _encode_each_alone(self, parts: Iterable[tuple[dict[str, Any], int]]) -> dict[int, PartReply]:
        """Encode parts one by one, each in a group of its own, and return the replies by position in the message."""
        replies: dict[int, PartReply] = {}
        with torch.inference_mode():
            for part, position in parts:
                group = self._tokenize_group([part], [position])
                replies |= self._finish_group(group, self._begin_group(group))
        return replies

    def _compute_vectors(self, group: Tokenized) -> tuple[torch.Tensor, NDArray[np.int64], NDArray[np.int64]]:
        """Run the model on a group's texts.

        Returns:
            The vectors `(n, d)` on the device, and the numbers of tokens of each text that were read and cut off, both
            `(n,)`.
        """
        batches, options = group.batches, group.parts[0]["options"]
        encoder, normalize = self.encoder.route(options["prompt_name"]), options["normalize"]
        vectors = torch.cat([encoder.forward(batch, normalize) for batch in batches])
        rows = np.concatenate([batch.rows for batch in batches])
        tokens = np.concatenate([batch.tokens for batch in batches])
        cut = np.concatenate([np.zeros(len(b.rows), np.int64) if b.cut is None else b.cut for b in batches])
        if (rows[1:] < rows[:-1]).any():
            order = np.argsort(rows)
            tokens, cut = tokens[order], cut[order]
            vectors = vectors[move_to_device(torch.from_numpy(order), vectors.device)]
        return *group.pieces.join(vectors, tokens, normalize), group.pieces.join_cut(cut)

    def _apply_chains(
        self, refs: Sequence[dict[str, Any] | None], raws: Sequence[torch.Tensor]
    ) -> list[HostCopy | Exception | None]:
        """Transform the vectors `(n, d)` of each part by the chain of the part.

        The result for each part is a copy of the vectors `(n, k)`, the chain's error, or None without a chain. Vectors
        for the same chain are transformed together, because one row takes as long as twenty. If that fails, each part's
        vectors are transformed alone.

        Args:
            refs: `ChainRef` of each part as JSON; None without a chain.
            raws: vectors of each part.
        """
        results: list[HostCopy | Exception | None] = [None] * len(raws)
        distinct_refs = {tuple(ref.values()): ref for ref in refs if ref is not None}
        for ref in distinct_refs.values():
            indices = [index for index, part_ref in enumerate(refs) if part_ref == ref]
            outputs: Sequence[HostCopy | Exception | None]
            try:
                stacked = self.load_chain(ref).floats(torch.cat([raws[index] for index in indices]))
                outputs = HostCopy.begin(stacked).split([len(raws[index]) for index in indices])
            except Exception as error:
                outputs = [error]
                if len(indices) > 1:  # perhaps the vectors of one part caused the error
                    outputs = [self._apply_chains([ref], [raws[index]])[0] for index in indices]
            for index, result in zip(indices, outputs, strict=True):
                results[index] = result
        return results

    def load_chain(self, ref: dict[str, Any]) -> Chain:
        """Load a chain of transforms, folded into fewer steps, on the device, from the cache or the disk.

        Another chain in the folder raises. If the cache exceeds `MAX_CHAINS`, the least recently used chain is removed.

        Args:
            ref: fields of a `ChainRef`.

        Raises:
            ArtifactError: if the folder is missing, damaged, or holds another chain.
        """
        key = ref["folder"], ref["digest"]
        forms = self.chains.get(key)
        if forms is None:
            chain = Chain.load(Path(ref["folder"]))
            if chain.metadata["tensors_sha256"] != ref["digest"]:
                raise ArtifactError("the chain was replaced by another while this request waited; send it again")
            forms = self.chains[key] = FoldedForms(chain, self.encoder.device)
        return forms.get(ref["dimensions"], ref["normalize"], ref["side"])


def _build_reply(
    part: dict[str, Any],
    result: HostCopy | Exception | None,
    raw: framing.Array,
    counts: list[framing.Array],
) -> PartReply:
    """Build a part's header entry and arrays for the reply: vectors and token counts, or the chain's error.

    The vectors before the chain are added if the part asks for them. With an error there are no arrays.

    Args:
        part: the part as JSON.
        result: vectors after the chain, the chain's error, or None without a chain.
        raw: vectors before the chain.
        counts: numbers of tokens read and cut off of each text.
    """
    if isinstance(result, Exception):
        return _describe_error(result), []
    if result is None:
        return {"raw": False}, [raw, *counts]
    return {"raw": part["keep_raw"]}, [result.wait(), *counts, *([raw] if part["keep_raw"] else [])]


def _describe_error(error: Exception) -> dict[str, Any]:
    """Convert an error to a header entry for the reply, `{error: class, message}`. Only expected errors have a message.

    The class of an unexpected error is logged. Its message is left out, as it may quote texts.
    """
    if isinstance(error, EXPECTED_ERRORS):
        return {"error": type(error).__name__, "message": str(error)}
    log.error("a request failed: %s", type(error).__name__)
    return {"error": type(error).__name__, "message": ""}


def _load_encoder(request: dict[str, Any]) -> tuple[Encoder, dict[str, Any]]:
    """Load the encoder that the server requested, run it on a few texts, and return it with its description as JSON.

    PyTorch's number of threads is set as requested.

    Raises:
        EncoderError: if the encoder cannot be loaded.
    """
    options = request["options"]
    torch.set_num_threads(options["threads"])
    encoder = Encoder(EncoderSpec(**request["spec"]), options["device"], options["batch_tokens"])
    encoder.encode(PROBES)
    return encoder, {
        "spec": encoder.spec.to_json(),
        "fingerprint": encoder.fingerprint,
        "dimensions": encoder.dimensions,
        "max_length": max(encoder.max_length, 0 if encoder.queries is None else encoder.queries.max_length),
        "prompts": encoder.prompts,
        "default_prompt_name": encoder.model.default_prompt_name,
        "device": encoder.device,
        "batch_tokens": encoder.batch_tokens,
        "window_tokens": encoder.window_tokens,
        "routed": encoder.routed,
        "warning": encoder.warning,
        "model_bytes": encoder.model_bytes,
        "agreement": None if encoder.agreement is None else asdict(encoder.agreement),
    }


def _receive_messages(connection: Connection, worker: Worker, ready: "queue.Queue[list[Tokenized]]") -> None:
    """Read messages from the server, tokenize them, and put the groups in `ready`. Exit the process at the end.

    The end is a closed connection or any error. A worker without this thread would accept messages and answer none
    until the server's timeout.
    """
    try:
        while True:
            head, _ = framing.receive(connection)
            ready.put(worker.tokenize(head["parts"]))
    except (EOFError, OSError):
        pass
    except Exception as error:
        log.error("the server's message cannot be read: %s", type(error).__name__)
    finally:
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Load an encoder, and encode the messages of the server at the other end of a socket, until the server is gone.

    Args:
        arguments: the number of the socket's file descriptor.
    """
    logs.configure("warning")
    serve(Connection(socket.socket(fileno=int(arguments[0])).detach()))


def serve(connection: Connection) -> None:
    """Load the encoder in the first message, then answer each message with vectors until the server is gone.

    The outcome of loading is sent to the server first. If loading failed, no further message is read.
    """
    request, _ = framing.receive(connection)
    try:
        encoder, description = _load_encoder(request)
    except Exception as error:
        is_expected = isinstance(error, EncoderError)
        name = request["spec"]["name"]
        problem = str(error) if is_expected else f"{name} failed to load: {type(error).__name__}: {error}"
        framing.send(connection, {"state": "failed", "problem": problem})
        return

    worker = Worker(encoder)
    ready: queue.Queue[list[Tokenized]] = queue.Queue(maxsize=2)
    with suppress(OSError):  # the server has ended
        framing.send(connection, {"state": "ready", "encoder": description})
        threading.Thread(target=_receive_messages, args=(connection, worker, ready), daemon=True).start()
        message: _BegunMessage | None = None
        while True:
            # While a GPU computes a message, the reply to the previous message is built and sent.
            begins = message is None or (encoder.device.startswith("cuda") and not ready.empty())
            following = worker.begin_message(ready.get()) if begins else None
            if message is not None:
                framing.send(connection, *worker.finish_message(message))
            message = following


if __name__ == "__main__":
    main(sys.argv[1:])
