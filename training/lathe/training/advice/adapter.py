"""Trial of what judged queries can improve without training the encoder: the first rungs of `lathe adapt`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lathe.training.adaptation.ladder import climb_ladder
from lathe.training.adaptation.report import list_notes, to_json, write_sentence
from lathe.training.adaptation.request import AdaptRequest
from lathe.training.advice.request import AdviceRequest
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.fitting.out_of_domain import list_built_in_corpora
from lathe.training.fitting.requests import RowSource
from lathe.transforms.progress import Progress

STEPS = "query_adapter"
"""Steps that the trial can recommend."""


@dataclass(frozen=True)
class AdapterTrial:
    """What a query adapter gains on judged queries that it was not fitted on.

    Attributes:
        steps: the steps that were tried.
        recommended: whether they are recommended.
        ladder: all that was measured, see `lathe.training.adaptation.report.to_json`.
        reasons: sentences.
    """

    steps: str
    recommended: bool
    ladder: dict[str, Any]
    reasons: list[str]


def try_adapter(
    request: AdviceRequest, texts: Sequence[str], encoder: TextEncoder, workspace: Path, on_progress: Progress
) -> AdapterTrial | None:
    """Fit a query adapter (a map of query vectors alone) on the request's judged queries, and measure its gain on
    others. Return the trial with measurements and verdict, or None if the request has no pairs.

    Args:
        request: the advice request.
        texts: sampled documents, which the queries search besides the relevant ones.
        encoder: encoder of both.
        workspace: folder for workspace folders.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        FitError: if the file of pairs holds none, or is malformed.
        SourceError: if it cannot be read.
    """
    if request.pairs is None:
        return None

    adapt = AdaptRequest(source=RowSource(texts=list(texts)), pairs=request.pairs, train=False, seed=request.seed)
    corpora = list_built_in_corpora(request.source)
    with climb_ladder(adapt, encoder, workspace, on_progress, corpora=corpora) as ladder:
        recommended = ladder.recommended.rung.steps == STEPS
        reasons = [write_sentence(ladder), *list_notes(ladder)]
        reasons.append("With lathe adapt, training the encoder is tried, too.")
        return AdapterTrial(STEPS, recommended, to_json(ladder), reasons)
