"""The process that owns a model, started by `dispatcher`: `python -m lathe.service.encoders.engine.worker FD`.

        receiving thread                      main thread
  FD ──► read ──► tokenize ──► queue of two ──► model ──► chain ──► FD

Tokenization thus overlaps with the model's computation. Parts with equal options share batches.
"""

import logging
import operator
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import compress
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
from lathe.training.encoder.batching import Batch
from lathe.training.encoder.devices import PROBES
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.long_texts import MAX_LONG_TOKENS, Pieces
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import check_finite
from lathe.training.errors import EncoderError, NotFiniteError, TooLongError
from lathe.transforms.chain import Chain
from lathe.transforms.errors import ArtifactError

EXPECTED_ERRORS = (TooLongError, NotFiniteError, EncoderError, ArtifactError)
"""Exceptions whose messages are sent to the caller; of others, only the type is."""
MAX_CHAINS = 64
"""Maximum number of folded chains kept on the device."""

log = logging.getLogger(__name__)


@dataclass
class Tokenized:
    """Parts of requests with equal options as tokenized batches, or the error that prevented this.

    Attributes:
        parts: the parts as JSON.
        positions: their positions in the message.
        pieces: texts of all parts, in the pieces that the model reads.
        batches: tokenized pieces; empty if there is an error.
        error: why the texts cannot be tokenized; None if they were.
    """

    parts: list[dict[str, Any]]
    positions: list[int]
    pieces: Pieces
    batches: list[Batch]
    error: Exception | None = None


class Worker:
    """An encoder in a worker process, with a cache of the chains of transforms that requests apply."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.tokenizing = threading.Lock()
        self.chains: LRUCache[tuple[str, str], FoldedForms] = LRUCache(MAX_CHAINS)

    def tokenize(self, parts: list[dict[str, Any]]) -> list[Tokenized]:
        """Tokenize the parts of a message, those with equal options together. Return a group of batches for each set of
        options.

        Errors are stored in the returned groups. Parts of a group that fails are tokenized alone when it is encoded.
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
        """Tokenize parts with equal options, and return them as a group of batches for the model, or with the error.

        With `long_text` "error", a text that is too long is an error. `positions` are those of the parts in the
        message.
        """
        options = parts[0]["options"]
        try:
            prompt = self.encoder.prompt(options["prompt_name"])
            texts = [text for part in parts for text in part["texts"]]
            with self.tokenizing:  # a tokenizer has one user at a time
                text_positions = [position for part in parts for position in part["positions"]]
                pieces = self.encoder.divide(texts, prompt, options["long_text"], text_positions, MAX_LONG_TOKENS)
                batches = self.encoder.tokenize(pieces.texts, prompt, options["truncation_side"])
            return Tokenized(parts, positions, pieces, batches)
        except Exception as error:
            return Tokenized(parts, positions, Pieces.whole([]), [], error)

    @torch.inference_mode()
    def encode_message(self, groups: list[Tokenized]) -> tuple[dict[str, Any], list[framing.Array]]:
        """Encode the tokenized groups of a message. Return the header and the arrays of the reply, both in the order of
        the parts.
        """
        begun = time.perf_counter()
        answers: dict[int, tuple[dict[str, Any], list[framing.Array]]] = {}
        batches: list[tuple[int, int, int]] = []
        for group in groups:
            answers |= self._encode_group(group)
            batches += [(len(b.rows), int(b.tokens.sum()), b.padded) for b in group.batches]
        results = [answers[position] for position in sorted(answers)]
        head = {
            "results": [result for result, _ in results],
            "batches": batches,
            "seconds": time.perf_counter() - begun,
        }
        return head, [array for _, arrays in results for array in arrays]

    def _encode_group(self, group: Tokenized) -> dict[int, tuple[dict[str, Any], list[framing.Array]]]:
        """Encode a group of parts and apply their chains of transforms. Return each part's header entry and arrays, by
        its position in the message.

        Parts are tried one by one if the group fails. Failures are returned as entries: no text and no chain may end
        the process, which answers other requests too.
        """
        try:
            return self._encode_together(group)
        except Exception as error:
            if len(group.parts) == 1:
                return {group.positions[0]: (_describe_error(error), [])}
            return self._encode_each_alone(zip(group.parts, group.positions, strict=True))

    def _encode_together(self, group: Tokenized) -> dict[int, tuple[dict[str, Any], list[framing.Array]]]:
        """Encode a group of parts in one go and apply their chains of transforms. Return each part's header entry and
        arrays, by its position in the message.

        What fails for the whole group is raised. A part of several for which the model gives NaN or inf is encoded
        again on its own.
        """
        if group.error is not None:
            raise group.error

        vectors, tokens, cut = self._compute_vectors(group)
        finite = bool(torch.isfinite(vectors).all())  # once: for single texts, a call for each would add up
        if not finite and len(group.parts) == 1:
            check_finite(vectors.cpu().numpy(), self.encoder.spec, group.parts[0]["positions"])

        # The rows of all parts are split again: `raws` holds the `(n, d)` of each part, `counts` its two `(n,)`.
        lengths = [len(part["texts"]) for part in group.parts]
        raws = vectors.split(lengths)  # type: ignore[no-untyped-call]
        counts = zip(*(np.split(array, np.cumsum(lengths)[:-1]) for array in (tokens, cut)), strict=True)

        usable = [finite or bool(torch.isfinite(raw).all()) for raw in raws]
        failed = compress(zip(group.parts, group.positions, strict=True), map(operator.not_, usable))
        answers = self._encode_each_alone(failed)  # their NaN may come from another's text
        parts = list(compress(zip(group.parts, group.positions, raws, counts, strict=True), usable))
        transformed = self._apply_chains([part["chain"] for part, *_ in parts], [raw for _, _, raw, _ in parts])
        for (part, position, raw, pair), result in zip(parts, transformed, strict=True):
            answers[position] = _build_reply(part, result, raw, pair)
        return answers

    def _encode_each_alone(
        self, parts: Iterable[tuple[dict[str, Any], int]]
    ) -> dict[int, tuple[dict[str, Any], list[framing.Array]]]:
        """Tokenize and encode each part on its own. Return each part's header entry and arrays, by its position in the
        message.
        """
        answers: dict[int, tuple[dict[str, Any], list[framing.Array]]] = {}
        for part, position in parts:
            answers |= self._encode_group(self._tokenize_group([part], [position]))
        return answers

    def _compute_vectors(self, group: Tokenized) -> tuple[torch.Tensor, NDArray[np.int64], NDArray[np.int64]]:
        """Run the model on a group's texts. Return their vectors `(n, d)` on the device, and the numbers of tokens read
        and cut of each text, both `(n,)`.
        """
        count, normalize = len(group.pieces.texts), group.parts[0]["options"]["normalize"]
        vectors = torch.empty((count, self.encoder.dimensions), device=self.encoder.device)
        tokens, cut = (np.zeros(count, dtype=np.int64) for _ in range(2))
        for batch in group.batches:
            vectors[torch.from_numpy(batch.rows).to(vectors.device)] = self.encoder.forward(batch, normalize)
            tokens[batch.rows] = batch.tokens
            cut[batch.rows] = 0 if batch.cut is None else batch.cut
        return *group.pieces.join(vectors, tokens, normalize), group.pieces.join_cut(cut)

    def _apply_chains(
        self, refs: Sequence[dict[str, Any] | None], raws: Sequence[torch.Tensor]
    ) -> list[torch.Tensor | Exception]:
        """Map each part's vectors `(n, d)` by its chain of transforms. Return for each part the vectors `(n, k)`, or
        the chain's error.

        A part without a chain keeps its vectors. Vectors for the same chain are mapped together: one row takes as long
        as twenty. The results are in the order of the parts.
        """
        results: list[torch.Tensor | Exception] = list(raws)
        distinct_refs = {tuple(ref.values()): ref for ref in refs if ref is not None}
        for ref in distinct_refs.values():
            indices = [index for index, part_ref in enumerate(refs) if part_ref == ref]
            try:
                stacked = self.load_chain(ref).floats(torch.cat([raws[index] for index in indices]))
                outputs: Sequence[torch.Tensor | Exception] = stacked.split([len(raws[index]) for index in indices])
            except Exception as error:
                outputs = [error]
                if len(indices) > 1:  # perhaps one part's fault
                    outputs = [self._apply_chains([ref], [raws[index]])[0] for index in indices]
            for index, result in zip(indices, outputs, strict=True):
                results[index] = result
        return results

    def load_chain(self, ref: dict[str, Any]) -> Chain:
        """Return the chain of transforms that a request names, folded into fewer steps, on the device, from the cache
        or the disk.

        Over `MAX_CHAINS`, the least recently used chain is dropped.

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
    part: dict[str, Any], result: torch.Tensor | Exception, raw: torch.Tensor, counts: Sequence[framing.Array]
) -> tuple[dict[str, Any], list[framing.Array]]:
    """Return a part's header entry and arrays for the reply: vectors and token counts on the CPU, or its error and no
    arrays.

    The vectors before the chain are added if the part asks for them.
    """
    if isinstance(result, Exception):
        return _describe_error(result), []
    keep_raw = part["keep_raw"] and part["chain"] is not None
    arrays: list[framing.Array] = [result.cpu().numpy(), *counts]
    return {"raw": keep_raw}, [*arrays, raw.cpu().numpy()] if keep_raw else arrays


def _describe_error(error: Exception) -> dict[str, Any]:
    """Return an error as a header entry for the reply, `{error: type, message}`. Only expected errors have a message.

    An unexpected error is logged, and its message left out, as it may quote texts.
    """
    if isinstance(error, EXPECTED_ERRORS):
        return {"error": type(error).__name__, "message": str(error)}
    log.error("a request failed: %s", type(error).__name__)
    return {"error": type(error).__name__, "message": ""}


def _load_encoder(request: dict[str, Any]) -> tuple[Encoder, dict[str, Any]]:
    """Load the encoder that the server requested, and encode a few texts with it. Return it with its description as
    JSON.

    Sets PyTorch's number of threads.

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
        "max_length": encoder.max_length,
        "prompts": encoder.prompts,
        "default_prompt_name": encoder.model.default_prompt_name,
        "device": encoder.device,
        "batch_tokens": encoder.batch_tokens,
        "window_tokens": encoder.window_tokens,
        "warning": encoder.warning,
        "model_bytes": encoder.model_bytes,
        "agreement": None if encoder.agreement is None else asdict(encoder.agreement),
    }


def _receive_messages(connection: Connection, worker: Worker, ready: "queue.Queue[list[Tokenized]]") -> None:
    """Read messages from the server, tokenize them, and put the groups in `ready`. Exit the process once that fails.

    A worker without this thread would accept work and answer none until the server's timeout.
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
    """Load an encoder, and encode the messages of the server at the other end of a socket, whose file descriptor is the
    argument.

    Args:
        arguments: the number of the socket's file descriptor.
    """
    logs.configure("warning")
    serve(Connection(socket.socket(fileno=int(arguments[0])).detach()))


def serve(connection: Connection) -> None:
    """Load the encoder in the first message, then answer each message with vectors until the server is gone.

    The outcome of loading is reported first. If it failed, no further message is read.
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
        while True:
            framing.send(connection, *worker.encode_message(ready.get()))


if __name__ == "__main__":
    main(sys.argv[1:])
