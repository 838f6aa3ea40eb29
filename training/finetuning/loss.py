"""The objective: InfoNCE over in-batch and hard negatives, and staying near the targets (Eqs. 8 to 10 of REZE)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad, get_rank, get_world_size
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, normalize

from training.encoder.unpadding import flatten_together
from training.errors import JobError

Features = Iterable[dict[str, Tensor]]


class NonFiniteLossError(JobError):
    """The loss, or the weights, are not numbers any more."""


@dataclass
class Components:
    """The means of both losses since they were last taken."""

    sums: dict[str, Tensor | float] = field(default_factory=dict)
    steps: int = 0

    def add(self, **losses: Tensor) -> None:
        """Those of a step."""
        for name, loss in losses.items():
            self.sums[name] = loss.detach() + self.sums.get(name, 0.0)
        self.steps += 1

    def take(self) -> dict[str, float]:
        """The means, to begin anew."""
        means = {name: float(total) / max(self.steps, 1) for name, total in self.sums.items()}
        self.sums, self.steps = {}, 0
        return means

    def share(self) -> None:
        """Give every process of torchrun the means over all, which took as many steps; to be called by all of them."""
        if get_world_size() == 1:
            return
        found: list[dict[str, Any]] = [{} for _ in range(get_world_size())]
        torch.distributed.all_gather_object(found, self.state())
        self.sums = {name: sum(one["sums"][name] for one in found) / len(found) for name in self.sums}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of them."""
        return {"sums": {name: float(total) for name, total in self.sums.items()}, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what a checkpoint kept."""
        self.sums, self.steps = dict(state["sums"]), int(state["steps"])


class ContrastiveLoss(nn.Module):
    """InfoNCE, with REZE's regulariser where there are targets.

    Every row carries its number in the mixture as its label; the loss looks the pair's target up by it. Under torchrun
    the positives of all processes are one another's negatives, so that a step's loss, and with it the gradient, is that
    of one process with the whole batch.

    Args:
        model: that is trained.
        temperature: τ of Eq. 9.
        targets: r̂ of each pair, `(n, 2d)`; None for plain pre-finetuning.
        loss_weight: α of Eq. 10.
        identical: numbers of each pair's anchor text and positive text, `(n, 2)`, equal where the texts are; negatives
            that share either with the pair are then left out. None keeps all.
        negatives: numbers of each pair's hard negatives, `(n, k)`, −1 where it has fewer; equal to the number of a
            positive in `identical` where the texts are. None where no pair has any.
        offsets: of each source, `(S, 2d)`, taken from its embeddings before InfoNCE compares them; None takes nothing.
        sources: of each pair, `(n,)`; needed with offsets.
        first_position: of a text's tokens, for a model that takes all texts as one row; None for one that needs them
            padded. See `training.unpadding`.
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        targets: NDArray[np.float32] | None = None,
        loss_weight: float = 0.0,
        identical: NDArray[np.int64] | None = None,
        offsets: NDArray[np.float32] | None = None,
        sources: NDArray[np.int64] | None = None,
        first_position: int | None = None,
        negatives: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.targets = targets  # a memmap, not a buffer: it may be larger than memory
        self.loss_weight = loss_weight
        self.identical = identical
        self.offsets = offsets
        self.sources = sources
        self.first_position = first_position
        self.negatives = negatives
        self.components = Components()

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The loss of a batch: tokens of anchors, positives and what hard negatives they have; the pairs' numbers."""
        columns = list(sentence_features)
        if self.first_position is None:
            anchors, positives, *negatives = (self.model(features)["sentence_embedding"] for features in columns)
            return self.objective(anchors, positives, labels, *negatives)
        flat = flatten_together(columns, self.first_position)
        sizes = [len(features["input_ids"]) for features in columns]
        anchors, positives, *negatives = self.model(flat)["sentence_embedding"][: sum(sizes)].split(sizes)
        return self.objective(anchors, positives, labels, *negatives)

    def objective(self, anchors: Tensor, positives: Tensor, labels: Tensor, negatives: Tensor | None = None) -> Tensor:
        """The loss of embeddings, in float32 whatever the model runs in.

        Args:
            anchors: `(b, d)`.
            positives: `(b, d)`.
            labels: numbers of the pairs, `(b,)`.
            negatives: hard ones of all pairs, `(m, d)`, pair after pair; None where none of them has any.

        Raises:
            NonFiniteLossError: if it is not a number.
        """
        with torch.autocast(anchors.device.type, enabled=False):
            a, p = normalize(anchors.float(), dim=1), normalize(positives.float(), dim=1)
            rows = labels.detach().cpu().numpy()
            anchors, candidates = self.compared(a, p, rows, negatives)
            first, excluded = len(rows) * get_rank(), self.excluded(rows, a.device)
            contrastive = info_nce(anchors, positives_first(everyones(candidates)), self.temperature, excluded, first)
            parts = {"contrastive": contrastive}
            total = contrastive
            if self.targets is not None:
                target = on_device(self.targets, rows, a.device)
                parts["regularizer"] = (1 - cosine_similarity(torch.cat([a, p], dim=1), target, dim=1)).mean()
                total = contrastive + self.loss_weight * parts["regularizer"]
        if not torch.isfinite(total):
            raise NonFiniteLossError(f"the loss became {total.item()}")
        self.components.add(**parts)
        return total

    def compared(
        self, a: Tensor, p: Tensor, rows: NDArray[np.int64], negatives: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """What InfoNCE compares, unit vectors: anchors `(b, d)`, and positives with their hard negatives `(b, 1+k, d)`.

        They are the embeddings, without their source's offset where asked; zero where a pair has fewer negatives.
        """
        candidates = p[:, None]
        if self.negatives is not None:
            there = torch.from_numpy(self.negatives[rows] >= 0).to(p.device)
            hard = p.new_zeros(*there.shape, p.shape[1])
            if negatives is not None:
                hard[there] = normalize(negatives.float(), dim=1)
            candidates = torch.cat([candidates, hard], dim=1)
        if self.offsets is None or self.sources is None:
            return a, candidates
        of_anchors, of_positives = on_device(self.offsets, self.sources[rows], a.device).chunk(2, dim=1)
        return normalize(a - of_anchors, dim=1), normalize(candidates - of_positives[:, None], dim=2)

    def excluded(self, rows: NDArray[np.int64], device: torch.device) -> Tensor | None:
        """Which candidates are no negatives, `(b, B)`, or `(b, B + B·k)` with hard ones.

        Their anchor or positive is the pair's own text, or they are the pair. The last is so where the last batch of
        several processes is filled up with pairs that it holds already.
        """
        if self.identical is None and self.negatives is None and get_world_size() == 1:
            return None
        numbers = rows[:, None] if self.identical is None else np.column_stack([rows, self.identical[rows]])
        own = torch.from_numpy(numbers).to(device)
        same = (own[:, None, :] == everyones(own)[None, :, :]).any(dim=2)
        places = torch.arange(len(rows), device=device)
        same[places, len(rows) * get_rank() + places] = False
        if self.negatives is None:
            return same
        hard = everyones(torch.from_numpy(self.negatives[rows]).to(device)).flatten()
        none = (hard < 0).expand(len(rows), -1)
        if self.identical is not None:
            none = none | (hard[None, :] == own[:, -1:])
        return torch.cat([same, none], dim=1)


class CachedContrastiveLoss(CachedLossMixin, ContrastiveLoss):
    """The same with gradients cached (GradCache): any batch size in the memory of a small one, at twice the time."""

    def __init__(self, mini_batch_size: int, *args: Any, **options: Any) -> None:
        """As `ContrastiveLoss`; `mini_batch_size` pairs are in memory at once."""
        super().__init__(*args, **options)
        self.mini_batch_size = mini_batch_size

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """The loss of a batch, by mini-batches."""
        return self.forward_cached(sentence_features, labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of all mini-batches' embeddings; the batch is small beside the model."""
        assert labels is not None  # the trainer always hands over the numbers of the pairs
        anchors, positives, *negatives = map(torch.cat, reps)
        loss = self.objective(anchors, positives, labels, *negatives)
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss


def on_device(values: NDArray[np.float32], rows: NDArray[np.int64], device: torch.device) -> Tensor:
    """Rows of an array or memmap as a tensor."""
    return torch.from_numpy(np.ascontiguousarray(values[rows])).to(device)


def everyones(values: Tensor) -> Tensor:
    """The rows `(B, …)` of all processes, in their order; gradients flow back to each. Alone, those given."""
    if get_world_size() == 1:
        return values
    return all_gather_with_grad(values) if values.requires_grad else all_gather(values)


def positives_first(candidates: Tensor) -> Tensor:
    """Positives with their hard negatives `(B, 1+k, d)` as rows `(B + B·k, d)`, all positives before all negatives."""
    return torch.cat([candidates[:, 0], candidates[:, 1:].flatten(0, 1)])


def info_nce(
    anchors: Tensor, candidates: Tensor, temperature: float, excluded: Tensor | None = None, first: int = 0
) -> Tensor:
    """Eq. 9: every anchor `(b, d)` finds its positive among `(B, d)`, the first its own at `first`; unit vectors."""
    similarities = anchors @ candidates.T / temperature
    if excluded is not None:
        similarities = similarities.masked_fill(excluded, float("-inf"))
    return cross_entropy(similarities, first + torch.arange(len(anchors), device=anchors.device))
