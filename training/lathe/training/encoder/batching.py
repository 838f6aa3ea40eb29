"""Batching of texts for a model: texts of similar length go together, up to a budget of tokens.

Parallel batches, each on one core, are faster than one batch on all cores, most of all while other programs run: a
batch of a small model is over in milliseconds, and cores that share each of its operations spend most of that time
waiting for one another.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

BYTES_PER_TOKEN = 4
"""Bytes per token, about 4 for English in UTF-8 and 3 for Chinese. It only plans batches; the tokenizer gives true
lengths."""

Features = dict[str, Any]
"""Input of a model: tensors `(texts, tokens)` by name, and other arguments of the forward pass by name."""


@dataclass(frozen=True)
class Batch:
    """Tokenized texts that go through the model in one forward pass.

    Attributes:
        rows: positions `(b,)` of the batch's texts among the texts tokenized together.
        features: the model's input, padded to the longest text, or flattened without padding.
        tokens: number of tokens of each text `(b,)`, without padding.
        padded: number of tokens that the model computes, padding included.
        cut: number of tokens of each text that the model does not read `(b,)`; None if all are read.
    """

    rows: NDArray[np.int64]
    features: Features
    tokens: NDArray[np.int64]
    padded: int
    cut: NDArray[np.int64] | None = None


def estimate_tokens(text: str, max_length: int) -> int:
    """Estimate how many tokens a model will read of a text, without tokenizing the text.

    The estimate is a quarter of the text's UTF-8 bytes plus 2, and at most `max_length`.
    """
    if len(text) >= BYTES_PER_TOKEN * max_length:  # a character has at least one byte, so the bytes need no counting
        return max_length
    return min(max_length, 2 + len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def sort_longest_first(lengths: Sequence[int]) -> list[int]:
    """Sort the positions of texts by descending length, so that texts of similar length are neighbours.

    Texts of equal length keep their order.
    """
    return sorted(range(len(lengths)), key=lambda index: -lengths[index])


def split_padded_batches(lengths: Sequence[int], budget: int, slack: int) -> Iterator[slice]:
    """Split texts that are sorted longest first into batches, and yield each batch as a slice of the sorted texts.

    A new batch begins where the tokens, padding included, would exceed `budget`, or where the padding would exceed
    `slack`. A text longer than the budget is a batch of its own. Without texts there are no batches.

    Args:
        lengths: tokens of each text, longest first.
        budget: maximum tokens of a batch, with all texts padded to the length of the batch's first text.
        slack: maximum tokens of padding in a batch; a little padding costs less than another forward pass.
    """
    start = padding = 0
    for position, length in enumerate(lengths):
        longest = lengths[start]
        padding += longest - length
        if position > start and ((position - start + 1) * longest > budget or padding > slack):
            yield slice(start, position)
            start, padding = position, 0

    if lengths:
        yield slice(start, len(lengths))


def split_unpadded_batches(lengths: Sequence[int], budget: int) -> Iterator[slice]:
    """Split texts, in the order given, into batches of at most `budget` tokens, and yield each batch as a slice.

    Padding is not counted. A text longer than the budget is a batch of its own. Without texts there are no batches.
    """
    start = tokens = 0
    for position, length in enumerate(lengths):
        tokens += length
        if position > start and tokens > budget:
            yield slice(start, position)
            start, tokens = position, length

    if lengths:
        yield slice(start, len(lengths))


def split_features(features: Features, budget: int, slack: int, padding_side: str) -> Iterator[Batch]:
    """Split texts that were tokenized and padded together into batches of similar length, and yield the batches.

    The tensors of a batch are padded to the longest text of the batch. `rows` of a batch holds the positions of the
    batch's texts in `features`. Features without an attention mask are already flattened for flash attention, and
    become one batch.

    Args:
        features: padded input of all texts.
        budget: maximum tokens of a batch, padding included.
        slack: maximum tokens of padding in a batch.
        padding_side: 'left' or 'right', the side on which the texts are padded.
    """
    if "attention_mask" not in features:
        tokens = np.diff(features["cu_seq_lens_q"].cpu().numpy()).astype(np.int64)
        yield Batch(np.arange(len(tokens)), features, tokens, int(tokens.sum()))
        return

    # The tokenizer padded (texts, tokens) to the longest of all texts. A batch keeps only the columns that the longest
    # text of the batch fills.
    mask = features["attention_mask"]
    lengths = mask.sum(1).numpy().astype(np.int64)
    # By true length, so that neighbours need little padding.
    order = np.array(sort_longest_first(lengths.tolist()), dtype=np.int64)

    for bounds in split_padded_batches(lengths[order].tolist(), budget, slack):
        rows = order[bounds]
        longest = int(lengths[rows[0]])
        columns = slice(mask.shape[1] - longest, None) if padding_side == "left" else slice(0, longest)
        inputs = {
            name: value[torch.from_numpy(rows)][:, columns]
            if isinstance(value, torch.Tensor) and value.shape == mask.shape
            else value
            for name, value in features.items()
        }
        yield Batch(rows, inputs, lengths[rows], longest * len(rows))


def move_to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Copy a tensor from the CPU to a device, and return the copy.

    The copy to a GPU goes through pinned memory, so this thread does not wait for it. A tensor in ordinary memory would
    be copied only when all work submitted to the GPU is finished.
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


@dataclass(frozen=True)
class HostCopy:
    """Copy of a tensor in the CPU's memory, which a GPU may still be writing while this thread goes on.

    Attributes:
        copied: the copy; it may be read after `wait`.
        written: CUDA event after which the copy is complete; None if it is complete already.
    """

    copied: torch.Tensor
    written: Any = None

    @classmethod
    def begin(cls, tensor: torch.Tensor) -> "HostCopy":
        """Start to copy a tensor from a GPU to pinned memory, and return the copy without waiting.

        A tensor that is on the CPU is returned in the `HostCopy` as it is.
        """
        if not tensor.is_cuda:
            return cls(tensor.cpu())
        copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        copied.copy_(tensor, non_blocking=True)
        written = torch.cuda.Event()  # type: ignore[no-untyped-call]
        written.record(torch.cuda.current_stream(tensor.device))
        return cls(copied, written)

    def split(self, lengths: list[int]) -> "list[HostCopy]":
        """Split the copy into views of consecutive rows, with the given numbers of rows.

        Nothing is copied or waited for.
        """
        parts: Sequence[torch.Tensor] = self.copied.split(lengths)  # type: ignore[no-untyped-call]
        return [HostCopy(part, self.written) for part in parts]

    def wait(self) -> NDArray[Any]:
        """Wait until the GPU has written the copy, and return it as a NumPy array that shares its memory."""
        if self.written is not None:
            self.written.synchronize()
        return self.copied.numpy()


T = TypeVar("T")
R = TypeVar("R")


def prefetch(items: Iterable[T]) -> Generator[T, None, None]:
    """Yield the items of an iterable in order, while another thread computes the next item.

    An error of the iterable is raised where the item would have been yielded.
    """
    following = ((item,) for item in items)
    with ThreadPoolExecutor(1, "prefetch") as pool:
        pending = pool.submit(next, following, None)
        while (made := pending.result()) is not None:
            pending = pool.submit(next, following, None)
            yield made[0]


def map_in_threads(work: Callable[[T], R], items: Iterable[T]) -> Generator[tuple[T, R], None, None]:
    """Apply a function to items in as many threads as torch uses, and yield `(item, result)` pairs in order.

    Meanwhile torch computes on one core in each thread, this thread included; at the end the number of torch's threads
    is restored. A single item, or a torch with one thread, is computed in this thread without a pool. Items are taken
    from the iterable as threads become free. An error of the function is raised where the item's pair would have been
    yielded, after the items that have begun are finished.

    Args:
        work: function that may run in several threads at once.
        items: the function's arguments.
    """
    threads = torch.get_num_threads()
    following = iter(items)
    beginning = list(islice(following, 2))
    if threads == 1 or len(beginning) < 2:
        for item in chain(beginning, following):
            yield item, work(item)
        return

    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads, "encode", torch.set_num_threads, (1,)) as pool:
            pending: deque[tuple[T, Future[R]]] = deque()
            for item in chain(beginning, following):
                pending.append((item, pool.submit(work, item)))
                if len(pending) > threads:  # one more than threads is queued, so that no thread is idle
                    finished, result = pending.popleft()
                    yield finished, result.result()
            for finished, result in pending:
                yield finished, result.result()
    finally:
        torch.set_num_threads(threads)
