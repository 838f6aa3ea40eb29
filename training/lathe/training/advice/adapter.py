"""Trial of a query adapter on queries with known relevant documents."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from lathe.training.advice.encoding import SampleEncoder
from lathe.training.advice.request import AdviceRequest
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import AdviceError
from lathe.training.fitting.encoded_shards import hash_row
from lathe.training.fitting.encoding import EncodedSource
from lathe.training.fitting.out_of_domain import OutOfDomainTexts
from lathe.training.fitting.pairs import encode_pairs
from lathe.training.sources.row_sample import RowSample
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import InputError
from lathe.transforms.progress import Progress
from lathe.transforms.quality import relevance_measures

STEPS = "query_adapter"
"""Steps that are tried."""


@dataclass(frozen=True)
class AdapterTrial:
    """What a query adapter gains on queries that it was not fitted on.

    Attributes:
        steps: the steps that were fitted.
        recommended: whether the lower end of the interval of the gain in nDCG@10 is above 0.
        relevance: see `lathe.transforms.quality.relevance_measures`; with `out_of_domain`, those of halves of other
            texts. Empty if the fit was refused.
        reasons: sentences.
    """

    steps: str
    recommended: bool
    relevance: dict[str, Any]
    reasons: list[str]


def try_adapter(
    request: AdviceRequest, row_sample: RowSample, encoding: SampleEncoder, encoder: TextEncoder, on_progress: Progress
) -> AdapterTrial | None:
    """Fit a query adapter (a map of query vectors alone) on the request's labelled pairs, and measure its gain.
    A fifth of the queries are held out for that. Return the trial with measurements and verdict, or None if the request
    has no pairs.

    The queries search the pairs' documents and the sampled rows.

    Raises:
        AdviceError: if the file of pairs holds too few, or is none.
        SourceError: if it cannot be read.
    """
    if request.pairs is None:
        return None

    texts = [text for text in row_sample.texts if text not in encoding.failed]
    hashes = np.array([hash_row(text.encode()) for text in texts], np.uint64)
    out_of_domain_text = "pydoc:topics" if request.source == "pydoc:" else "pydoc:"
    labelled = encode_pairs(
        request.pairs,
        None,
        encoder,
        EncodedSource(encoding.vectors(texts), hashes, 0),
        OutOfDomainTexts({out_of_domain_text.rstrip(":").replace(":", "-"): out_of_domain_text}),
        request.seed,
        on_progress,
    )
    assert labelled is not None and labelled.fit is not None  # pairs are named, and none to test with
    on_progress(0.5, "fitting a query adapter")

    try:
        chain = Chain(parse_steps(STEPS)).fit(labelled.fit.documents, pairs=labelled.fit)
    except InputError as error:
        raise AdviceError(f"no adapter can be tried on {request.pairs}: {error}") from error

    measured = relevance_measures(chain, labelled.test)
    by_text = {name: relevance_measures(chain, halves) for name, halves in labelled.out_of_domain.items()}
    ndcg = measured["ndcg_at_10"]
    # The lower end of the interval, so that a gain by chance is not recommended.
    recommended = ndcg["gain"] > (ndcg["ci95"] or 0)

    return AdapterTrial(
        STEPS, recommended, measured | {"out_of_domain": by_text}, _explain(recommended, measured, by_text)
    )


def _explain(recommended: bool, measured: dict[str, Any], by_text: dict[str, dict[str, Any]]) -> list[str]:
    """Explain the trial of a query adapter in sentences.
    They give the verdict, its gain on held-out queries, and its gain or loss on each out-of-domain text.

    Args:
        recommended: whether the adapter is recommended.
        measured: relevance measures on the held-out queries.
        by_text: relevance measures on halves of out-of-domain texts, by the text's name.
    """

    def change(sentences: dict[str, Any], name: str) -> str:
        measure = sentences[name]
        return f"{measure['before']:.3f} → {measure['after']:.3f} ({measure['gain']:+.3f} ± {measure['ci95'] or 0:.3f})"

    if recommended:
        verdict = "Put query_adapter first: it maps queries alone, so that no document is encoded again."
    else:
        verdict = "No query adapter: on held-out queries its gain cannot be told from chance."

    sentences = [
        verdict,
        f"On {measured['queries']:,} queries that it was not fitted on, nDCG@10 goes {change(measured, 'ndcg_at_10')} "
        f"and recall@10 {change(measured, 'recall_at_10')}, intervals of 95 %, paired by query.",
    ]
    for name, measures in by_text.items():
        worse = measures["ndcg_at_10"]["gain"] < -(measures["ndcg_at_10"]["ci95"] or 0)
        cost = "other queries lose" if worse else "no loss beyond the interval"
        sentences.append(
            f"Halves of other text ({name}) find each other at nDCG@10 {change(measures, 'ndcg_at_10')}: {cost}."
        )

    return sentences
