"""The process that owns a model: `python -m service.engine.worker FD`, started by `service.engine.process`.

        receiving thread                      main thread
  FD ──► read ──► tokenize ──► queue of two ──► model ──► chain ──► FD

Tokenization thus overlaps with the model's computation. Parts with equal options share batches.
"""

import logging
import os
import queue
import socket
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from service import logs
from service.engine import wire
from service.memory import keep_freed_blocks
from training.encoder.batching import Batch
from training.encoder.encoder import Encoder
from training.encoder.precision import PROBES
from training.encoder.spec import EncoderSpec
from training.errors import EncoderError, TooLongError
from transforms.chain import Chain
from transforms.errors import ArtifactError

FORESEEN = (TooLongError, EncoderError, ArtifactError)
"""Exceptions whose messages are sent to the caller; of others, only the type is."""
CHAINS_MOST = 64
"""Maximum number of folded chains kept on the device."""

log = logging.getLogger(__name__)


@dataclass
class Tokenized:
    """Parts with equal options as batches for the model, or the error that prevented this.

    Attributes:
        parts: the parts as JSON.
        places: their positions in the message.
        batches: tokenized texts of all parts; empty if there is an error.
        error: why the texts cannot be tokenized; None if they were.
    """

    parts: list[dict[str, Any]]
    places: list[int]
    batches: list[Batch]
    error: Exception | None = None


class Worker:
    """An encoder, with a cache of the chains that requests apply."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder
        self.tokenizing = threading.Lock()
        self.chains: OrderedDict[tuple[Any, ...], Chain] = OrderedDict()

    def tokenize(self, parts: list[dict[str, Any]]) -> list[Tokenized]:
        """Tokenize a message's parts, grouped by equal options; if a group fails, each of its parts on its own.

        Errors are stored in the returned groups, so that no part fails because of another.
        """
        alike: dict[tuple[Any, ...], list[int]] = {}
        for place, part in enumerate(parts):
            alike.setdefault(tuple(part["options"].values()), []).append(place)
        found: list[Tokenized] = []
        for places in alike.values():
            together = self.tokenize_alike([parts[place] for place in places], places)
            if together.error is not None and len(places) > 1:
                found += [self.tokenize_alike([parts[place]], [place]) for place in places]
            else:
                found.append(together)
        return found

    def tokenize_alike(self, parts: list[dict[str, Any]], places: list[int]) -> Tokenized:
        """Tokenize parts with equal options to batches; an error is returned in the result, not raised."""
        options = parts[0]["options"]
        try:
            prompt = self.encoder.prompt(options["prompt_name"])
            texts = [text for part in parts for text in part["texts"]]
            with self.tokenizing:  # a tokenizer has one user at a time
                if not options["truncate"]:
                    for part in parts:
                        self.encoder.require_short(part["texts"], prompt or "", part["rows"])
                batches = self.encoder.tokenize(texts, prompt, options["truncation_side"])
            return Tokenized(parts, places, batches)
        except Exception as error:
            return Tokenized(parts, places, [], error)

    @torch.inference_mode()
    def answer(self, groups: list[Tokenized]) -> tuple[dict[str, Any], list[wire.Array]]:
        """Encode the groups of a message and return its reply: the header and the arrays, in the order of the parts."""
        begun = time.perf_counter()
        answers: dict[int, tuple[dict[str, Any], list[wire.Array]]] = {}
        batches: list[tuple[int, int, int]] = []
        for group in groups:
            answers |= self.answer_group(group)
            batches += [(len(b.rows), int(b.tokens.sum()), b.padded) for b in group.batches]
        told = [answers[place] for place in sorted(answers)]
        head = {
            "results": [result for result, _ in told],
            "batches": batches,
            "seconds": time.perf_counter() - begun,
        }
        return head, [array for _, arrays in told for array in arrays]

    def answer_group(self, group: Tokenized) -> dict[int, tuple[dict[str, Any], list[wire.Array]]]:
        """Encode a group and apply the chains; return each part's header entry and arrays, by position in the message.

        If the model fails on the group, each part is tried on its own, and failures are returned as entries.
        """
        try:
            if group.error is not None:
                raise group.error
            vectors, tokens = self.encode(group)
        except Exception as error:
            if len(group.parts) == 1:
                return {group.places[0]: (described(error), [])}
            alone: dict[int, tuple[dict[str, Any], list[wire.Array]]] = {}
            for part, place in zip(group.parts, group.places, strict=True):
                alone |= self.answer_group(self.tokenize_alike([part], [place]))
            return alone
        answers, start = {}, 0
        for part, place in zip(group.parts, group.places, strict=True):
            rows = slice(start, start + len(part["texts"]))
            start = rows.stop
            answers[place] = self.through_chain(part, vectors[rows], tokens[rows])
        return answers

    def encode(self, group: Tokenized) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """Encode a group's texts; return the vectors `(n, d)` on the device and the number of tokens `(n,)`."""
        count = sum(len(part["texts"]) for part in group.parts)
        vectors = torch.empty((count, self.encoder.dimensions), device=self.encoder.device)
        tokens = np.empty(count, dtype=np.int64)
        for batch in group.batches:
            found = self.encoder.forward(batch, group.parts[0]["options"]["normalize"])
            vectors[torch.from_numpy(batch.rows).to(vectors.device)] = found
            tokens[batch.rows] = batch.tokens
        return vectors, tokens

    def through_chain(
        self, part: dict[str, Any], raw: torch.Tensor, tokens: NDArray[np.int64]
    ) -> tuple[dict[str, Any], list[wire.Array]]:
        """Apply a part's chain and return its header entry and arrays on the CPU, or a header entry with the error.

        The raw vectors `(n, d)` are included only if they were requested.
        """
        try:
            vectors = raw if part["chain"] is None else self.chain(part["chain"]).floats(raw)
        except Exception as error:
            return described(error), []
        keep_raw = part["keep_raw"] and part["chain"] is not None
        arrays: list[wire.Array] = [vectors.cpu().numpy(), tokens]
        return {"raw": keep_raw}, [*arrays, raw.cpu().numpy()] if keep_raw else arrays

    def chain(self, asked: dict[str, Any]) -> Chain:
        """Return a chain, folded and on the device, from the cache or from disk.

        Raises:
            ArtifactError: if the folder is missing, damaged, or holds another chain.
        """
        key = tuple(asked.values())
        if key not in self.chains:
            chain = Chain.load(Path(asked["folder"]))
            if chain.metadata["tensors_sha256"] != asked["digest"]:
                raise ArtifactError("the chain was replaced by another while this request waited; send it again")
            self.chains[key] = chain.fold(asked["dimensions"], asked["normalize"]).to(self.encoder.device)
        self.chains.move_to_end(key)
        while len(self.chains) > CHAINS_MOST:
            self.chains.popitem(last=False)
        return self.chains[key]


def described(error: Exception) -> dict[str, Any]:
    """Return a header entry for an error; of an unexpected one it has only the type, as its message may quote texts."""
    if isinstance(error, FORESEEN):
        return {"error": type(error).__name__, "message": str(error)}
    log.error("a request failed: %s", type(error).__name__)
    return {"error": type(error).__name__, "message": ""}


def load(told: dict[str, Any]) -> tuple[Encoder, dict[str, Any]]:
    """Load the encoder that the server asks for, run it once, and return it with its description as JSON.

    Raises:
        EncoderError: if the encoder cannot be loaded.
    """
    options = told["options"]
    torch.set_num_threads(options["threads"])
    encoder = Encoder(EncoderSpec(**told["spec"]), options["device"], options["batch_tokens"])
    encoder.encode(PROBES)
    return encoder, {
        "spec": asdict(encoder.spec),
        "fingerprint": encoder.fingerprint,
        "dimensions": encoder.dimensions,
        "max_length": encoder.max_length,
        "prompts": encoder.prompts,
        "default_prompt_name": encoder.model.default_prompt_name,
        "device": encoder.device,
        "batch_tokens": encoder.batch_tokens,
        "agreement": None if encoder.agreement is None else asdict(encoder.agreement),
    }


def receive_all(connection: Connection, worker: Worker, ready: "queue.Queue[list[Tokenized]]") -> None:
    """Read and tokenize messages into the queue until the connection fails, then exit the process.

    A worker without this thread would accept work and answer none until the server's timeout.
    """
    try:
        while True:
            head, _ = wire.receive(connection)
            ready.put(worker.tokenize(head["parts"]))
    except (EOFError, OSError):
        pass
    except Exception as error:
        log.error("the server's message cannot be read: %s", type(error).__name__)
    finally:
        os._exit(0)


def main(arguments: list[str]) -> None:
    """Serve the server at the other end of a socket.

    Args:
        arguments: the number of the socket's file descriptor.
    """
    logs.configure("warning")
    keep_freed_blocks()
    serve(Connection(socket.socket(fileno=int(arguments[0])).detach()))


def serve(connection: Connection) -> None:
    """Load the encoder in the first message, report the outcome, and answer messages until the server is gone."""
    told, _ = wire.receive(connection)
    try:
        encoder, description = load(told)
    except Exception as error:
        foreseen = isinstance(error, EncoderError)
        name = told["spec"]["name"]
        problem = str(error) if foreseen else f"{name} failed to load: {type(error).__name__}: {error}"
        wire.send(connection, {"state": "failed", "problem": problem})
        return
    worker = Worker(encoder)
    ready: queue.Queue[list[Tokenized]] = queue.Queue(maxsize=2)
    with suppress(OSError):  # the server went away
        wire.send(connection, {"state": "ready", "encoder": description})
        threading.Thread(target=receive_all, args=(connection, worker, ready), daemon=True).start()
        while True:
            wire.send(connection, *worker.answer(ready.get()))


if __name__ == "__main__":
    main(sys.argv[1:])
