"""Training loss: InfoNCE over in-batch and hard negatives, plus the loss of a regularizer (Eqs. 9 and 10 of REZE)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers.base.losses.gradcache import CachedLossMixin
from sentence_transformers.util.distributed import all_gather, all_gather_with_grad, get_rank, get_world_size
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from lathe.training.encoder.unpadding import flatten_together
from lathe.training.errors import JobError
from lathe.training.finetuning.regularizers.regularizer import Regularizer

Features = Iterable[dict[str, Tensor]]
"""Tokenized columns of a batch: anchors, positives and, if there are any, hard negatives."""


class NonFiniteLossError(JobError):
    """Error for a loss, a weight or an embedding that is NaN or infinite."""


@dataclass
class LossComponents:
    """Running sums of the parts of the loss, whose means go to the training log.

    Attributes:
        sums: sum of each part over the steps, by name.
        steps: number of steps.
    """

    sums: dict[str, Tensor | float] = field(default_factory=dict)
    steps: int = 0

    def add(self, **losses: Tensor) -> None:
        """Add the parts of one step's loss to the sums, without their gradients, and count the step."""
        for name, loss in losses.items():
            self.sums[name] = loss.detach() + self.sums.get(name, 0.0)
        self.steps += 1

    def pop_means(self) -> dict[str, float]:
        """Return the mean of each part of the loss over the steps since the last call, by name, and reset the sums."""
        means = {name: float(total) / max(self.steps, 1) for name, total in self.sums.items()}
        self.sums, self.steps = {}, 0
        return means

    def average_over_processes(self) -> None:
        """Replace the sums by their means over all processes of torchrun. Every process must call this."""
        if get_world_size() == 1:
            return
        states: list[dict[str, Any]] = [{} for _ in range(get_world_size())]
        torch.distributed.all_gather_object(states, self.state())
        self.sums = {name: sum(state["sums"][name] for state in states) / len(states) for name in self.sums}

    def state(self) -> dict[str, Any]:
        """Return the sums by name and the number of steps as a JSON-serializable dict, for a checkpoint."""
        return {"sums": {name: float(total) for name, total in self.sums.items()}, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Restore the sums and the number of steps from a dict that `state` returned for a checkpoint."""
        self.sums, self.steps = dict(state["sums"]), int(state["steps"])


class ContrastiveLoss(nn.Module):
    """InfoNCE loss of anchor–positive pairs, plus the loss of a regularizer.

    The label of a row is the index of its pair in the mixture, by which the regularizer looks up the data of the pair.
    Under torchrun the positives of all processes are in-batch negatives of one another, so loss and gradient of a step
    are the same as with the whole batch in one process.

    Args:
        model: sentence-transformers model to train.
        temperature: τ of Eq. 9.
        regularizer: the prepared regularizer.
        text_ids: ids of each pair's anchor and positive text, `(n, 2)`, from `assign_text_ids`; in-batch negatives that
            have the same anchor or positive text as the pair are excluded. None excludes none.
        first_position: position id of a text's first token, for a model that takes all texts as one row without padding
            (`lathe.training.encoder.unpadding`); None for a model that takes padded texts.
        negative_ids: ids of the texts of each pair's hard negatives, `(n, k)`, padded with −1, from
            `assign_negative_ids`; a negative with the text of a positive has the positive's id. None if no pair has a
            hard negative.

    Example:
        >>> loss = ContrastiveLoss(torch.nn.Identity(), temperature=1.0, regularizer=NoRegularizer())
        >>> loss.compute_loss(torch.eye(2), torch.eye(2), labels=torch.arange(2))
        tensor(0.3133)
    """

    def __init__(
        self,
        model: nn.Module,
        temperature: float,
        regularizer: Regularizer,
        text_ids: NDArray[np.int64] | None = None,
        first_position: int | None = None,
        negative_ids: NDArray[np.int64] | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.regularizer = regularizer
        self.text_ids = text_ids
        self.first_position = first_position
        self.negative_ids = negative_ids
        self.components = LossComponents()

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """Encode anchors, positives and hard negatives, and return the scalar loss. A loss that is not finite raises.

        The parts of the loss are added to `components`.

        Args:
            sentence_features: tokens of anchors, of positives, and of all hard negatives if there are any.
            labels: indices of the pairs in the mixture, `(b,)`.

        Raises:
            NonFiniteLossError: if the loss is NaN or infinite.
        """
        columns = list(sentence_features)
        if self.first_position is None:
            anchors, positives, *negatives = (self.model(features)["sentence_embedding"] for features in columns)
            return self.compute_loss(anchors, positives, labels, *negatives)

        flat = flatten_together(columns, self.first_position)
        sizes = [len(features["input_ids"]) for features in columns]
        anchors, positives, *negatives = self.model(flat)["sentence_embedding"][: sum(sizes)].split(sizes)

        return self.compute_loss(anchors, positives, labels, *negatives)

    def compute_loss(
        self, anchors: Tensor, positives: Tensor, labels: Tensor, negatives: Tensor | None = None
    ) -> Tensor:
        """Compute InfoNCE plus the weighted regularizer loss, a float32 scalar. A loss that is not finite raises.

        The parts of the loss are added to `components`.

        Args:
            anchors: `(b, d)`.
            positives: `(b, d)`.
            labels: indices of the pairs in the mixture, `(b,)`.
            negatives: hard negatives of all pairs, `(m, d)`, pair after pair; None if no pair has any.

        Raises:
            NonFiniteLossError: if the loss is NaN or infinite.
        """
        # In bfloat16 cosines would have two to three digits, and InfoNCE divides them by the temperature.
        with torch.autocast(anchors.device.type, enabled=False):
            a, p = normalize(anchors.float(), dim=1), normalize(positives.float(), dim=1)
            rows = labels.detach().cpu().numpy()
            anchors, candidates = self.regularizer.contrast(a, self._stack_candidates(p, rows, negatives), rows)
            # Every process has its own anchors and the candidates of all processes. Its positives begin at b · rank.
            first, excluded = len(rows) * get_rank(), self._mask_excluded(rows, a.device)
            gathered = _gather_rows(candidates)
            # (B, 1 + k, d) to (B + B·k, d): all positives come first, then all hard negatives.
            flat = torch.cat([gathered[:, 0], gathered[:, 1:].flatten(0, 1)])
            contrastive = info_nce(anchors, flat, self.temperature, excluded, first)
            parts = {"contrastive": contrastive}
            total = contrastive

            if (added := self.regularizer.loss(a, p, rows)) is not None:
                parts["regularizer"] = added
                total = contrastive + self.regularizer.weight * added

        if not torch.isfinite(total):
            raise NonFiniteLossError(f"the loss became {total.item()}")

        self.components.add(**parts)
        return total

    def _stack_candidates(self, positives: Tensor, rows: NDArray[np.int64], negatives: Tensor | None) -> Tensor:
        """Stack the unit vectors of each pair's positive and its k hard negatives, `(b, 1 + k, d)`.

        A missing hard negative is a row of zeros, which `_mask_excluded` masks.
        """
        if self.negative_ids is None:
            return positives[:, None]
        is_present = torch.from_numpy(self.negative_ids[rows] >= 0).to(positives.device)
        hard = positives.new_zeros(*is_present.shape, positives.shape[1])
        if negatives is not None:
            hard[is_present] = normalize(negatives.float(), dim=1)
        return torch.cat([positives[:, None], hard], dim=1)

    def _mask_excluded(self, rows: NDArray[np.int64], device: torch.device) -> Tensor | None:
        """Build the mask of the candidates that InfoNCE excludes for each pair, or return None if none can be excluded.

        The mask is `(b, B)`, or `(b, B + B·k)` with k hard negatives of each pair, where B is the batch of all
        processes. Excluded are missing hard negatives, candidates with the anchor or positive text of the pair (with
        `text_ids`), and copies of the pair itself. Copies occur when several processes share the last batch, which is
        filled up with pairs that it may already hold.
        """
        if self.text_ids is None and self.negative_ids is None and get_world_size() == 1:
            return None

        numbers = rows[:, None] if self.text_ids is None else np.column_stack([rows, self.text_ids[rows]])
        ids = torch.from_numpy(numbers).to(device)
        # ids are (b, 1) or (b, 3): pair, anchor text and positive text. A candidate with any equal id is excluded.
        is_excluded = (ids[:, None, :] == _gather_rows(ids)[None, :, :]).any(dim=2)
        positions = torch.arange(len(rows), device=device)
        # The pair's own positive is the correct class and is never excluded.
        is_excluded[positions, len(rows) * get_rank() + positions] = False
        if self.negative_ids is None:
            return is_excluded

        hard = _gather_rows(torch.from_numpy(self.negative_ids[rows]).to(device)).flatten()
        hard_excluded = (hard < 0).expand(len(rows), -1)
        if self.text_ids is not None:
            hard_excluded = hard_excluded | (hard[None, :] == ids[:, -1:])

        return torch.cat([is_excluded, hard_excluded], dim=1)


class CachedContrastiveLoss(CachedLossMixin, ContrastiveLoss):
    """`ContrastiveLoss` with cached gradients (GradCache), for large batches in little memory at twice the time."""

    def __init__(self, mini_batch_size: int, *args: Any, **options: Any) -> None:
        """Create a `ContrastiveLoss` from the further arguments, which encodes only `mini_batch_size` pairs at once."""
        super().__init__(*args, **options)
        self.mini_batch_size = mini_batch_size

    def forward(self, sentence_features: Features, labels: Tensor) -> Tensor:
        """Encode a batch in mini-batches with cached gradients, and return the loss of the whole batch, a scalar."""
        return self.forward_cached(sentence_features, labels)

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Compute the scalar loss from the embeddings of mini-batches. With `with_backward`, gradients are stored.

        With `with_backward`, the gradients are stored in the embeddings and the loss is detached. sentence-transformers
        calls this with the embeddings of each column, a list of mini-batches. The whole batch is compared at once,
        since embeddings are small compared with the model.
        """
        assert labels is not None  # the trainer always passes the indices of the pairs
        anchors, positives, *negatives = map(torch.cat, reps)
        loss = self.compute_loss(anchors, positives, labels, *negatives)
        if with_backward:
            torch.autograd.backward(loss)
            loss = loss.detach()
        return loss


def _gather_rows(values: Tensor) -> Tensor:
    """Concatenate the rows of all processes of torchrun in rank order, `(B, …)`.

    Gradients flow back if `values` require them. With a single process, `values` itself is returned.
    """
    if get_world_size() == 1:
        return values
    return all_gather_with_grad(values) if values.requires_grad else all_gather(values)


def info_nce(
    anchors: Tensor, candidates: Tensor, temperature: float, excluded: Tensor | None = None, first: int = 0
) -> Tensor:
    """Compute the InfoNCE loss, a scalar (Eq. 9 of the REZE paper).

    The loss is the mean cross-entropy of classifying each anchor's positive among all candidates, with cosines divided
    by the temperature as logits.

    Args:
        anchors: unit vectors, `(b, d)`.
        candidates: unit vectors, `(m, d)`; the positive of anchor i is row `first + i`.
        temperature: τ, which divides the cosines.
        excluded: mask `(b, m)` of candidates that are excluded; None excludes none.
        first: row of the first anchor's positive.

    Example:
        >>> anchors = torch.eye(2)
        >>> info_nce(anchors, anchors, temperature=1.0)  # −log(e / (e + 1))
        tensor(0.3133)
    """
    similarities = anchors @ candidates.T / temperature
    if excluded is not None:
        similarities = similarities.masked_fill(excluded, float("-inf"))
    return cross_entropy(similarities, first + torch.arange(len(anchors), device=anchors.device))
