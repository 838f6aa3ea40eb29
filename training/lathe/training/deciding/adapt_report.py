"""The result as sentences, as a table for the terminal, and as JSON."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.comparison import Interval, compare
from lathe.training.deciding.adapt import AdaptationResult
from lathe.training.deciding.trial import AS_IS, Trial, choose_trial, cross_validate
from lathe.training.reporting.text import MISSING, align_columns, format_duration


def to_json(result: AdaptationResult) -> dict[str, Any]:
    """Convert the result of an adaptation to a dict that can be serialized as JSON.

    Returns:
        `{sentence, notes, recommended, bytes, source, encoder, queries, documents, rows, trials}`. `recommended` is the
        name of a candidate change, `queries` has the numbers of queries to learn from, to choose by and to report on,
        and `trials` are as `Trial.describe` returns them, with differences to the encoder's unchanged float vectors.
    """
    searches, baseline = result.searches, result.baseline.relevance
    described = [
        trial.describe(baseline) if baseline is not None else {"change": trial.candidate.name, "problem": trial.problem}
        for trial in result.trials
    ]
    return {
        "sentence": write_sentence(result),
        "notes": list_notes(result),
        "recommended": result.recommended.candidate.name,
        "bytes": result.recommended.bytes,
        "source": result.request.source.path,
        "encoder": result.encoder.name,
        "queries": searches.count_queries(),
        "documents": len(searches.documents),
        "rows": searches.rows,
        "trials": described,
    }


def write_sentence(result: AdaptationResult) -> str:
    """Return the recommendation as sentences.

    They say what to do, what nDCG@10 it gains on the queries to report on, and what it costs to encode again.
    """
    chosen = result.recommended
    if chosen.relevance is None:
        return f"Leave the vectors as they are: {chosen.problem}."

    if chosen is result.baseline:
        return (
            "Leave the vectors as they are: on the queries to choose by, nothing that was tried beats that beyond "
            "chance."
        )

    stored = ""
    if chosen.bytes is not None:
        stored = f"store {chosen.bytes:,} bytes a vector instead of {result.baseline.vector_bytes:,}"
    if chosen.candidate is AS_IS:
        advice = f"No change improves search beyond chance; to save bytes, {stored}"
    else:
        label = chosen.candidate.label
        advice = " and ".join(filter(None, (label[:1].upper() + label[1:], stored)))

    before, after = (trial.measured_relevance.report for trial in (result.baseline, chosen))
    # Some queries chose the candidate, and on the others its gain may still be chance.
    if not result.is_certain:
        advice = f"Nothing is certain to help; the likeliest is to {chosen.candidate.label}"
        advice += f" and to {stored}" if stored else ""
    difference = _format_difference(compare(after, before))
    apart = "taught nothing" if result.searches.crossed else "neither taught nor chose"
    measured = (
        f"nDCG@10 of {len(after):,} queries that {apart} goes from {100 * before.mean():.1f} to "
        f"{100 * after.mean():.1f} ({difference})"
    )
    cost = "No document is encoded again."
    if chosen.candidate.encodes_again:
        seconds = format_duration(chosen.encode_seconds)
        cost = f"All {result.searches.rows:,} documents must be encoded again, about {seconds} here."
    return f"{advice}: {measured}. {cost}"


def list_notes(result: AdaptationResult) -> list[str]:
    """Return sentences on what the recommendation leaves open.

    They name data that were left out, losses on out-of-domain texts, how certain the choice is, and a candidate with a
    higher mean.
    """
    chosen = result.recommended
    notes = [*result.searches.notes, *chosen.notes]
    if chosen.relevance is None or result.baseline.relevance is None:
        return notes

    for name, after in chosen.relevance.out_of_domain.items():
        difference = compare(after, result.baseline.relevance.out_of_domain[name])
        if difference.sign < 0:
            notes.append(
                f"Out of domain ({name}), nDCG@10 changes by {_format_difference(difference)}: if the same vectors "
                "serve other searches, measure those too."
            )
    trials = result.coded or result.floats
    chosen_by_halves = (
        {choose_trial(trials, fold).candidate.name for fold in range(2)} if result.searches.crossed else set()
    )
    if chosen_by_halves - {AS_IS.name}:
        gain = _format_difference(cross_validate(trials, result.baseline.relevance))
        agree = "agree" if len(chosen_by_halves) == 1 else "choose differently"
        notes.append(
            f"These queries chose too, a half at a time, and the halves {agree}: chosen by one half and measured on "
            f"the other, the gain is {gain}."
        )
    rivals = [trial for trial in trials if trial.relevance is not None]
    # A candidate with a higher mean than the chosen one looks like a mistake in the table unless a note explains it.
    best = max(rivals, key=lambda trial: float(trial.measured_relevance.choose.mean()))
    if best is not chosen:
        ahead = compare(best.measured_relevance.choose, chosen.relevance.choose)
        notes.append(
            f"To {best.candidate.label} has the highest mean, {_format_difference(ahead)} more on the queries to "
            "choose by: not more than chance can make."
        )
    return notes


def format_adaptation(result: AdaptationResult) -> str:
    """Return the recommendation as text: sentences, a table of all trials if anything was measured, and notes."""
    parts = [write_sentence(result)]
    if result.baseline.relevance is not None:
        parts.append(format_table(result))
    parts += list_notes(result)
    return "\n\n".join(parts)


def format_table(result: AdaptationResult) -> str:
    """Return a table of all trials as text, with differences of nDCG@10 to the unchanged float vectors in points.

    Below the table stand the reasons why some candidates were not tried.
    """
    searches = result.searches
    learn, choose, report = searches.count_queries().values()
    chosen_by = [] if searches.crossed else [f"on {choose:,} to choose by"]
    header = ["change", "bytes", *chosen_by, f"on {report:,} set aside", "out of domain", "takes"]
    rows = [header, *(_format_trial(trial, result) for trial in result.trials)]
    about = (
        f"nDCG@10 in points against {result.encoder.name} as it is, with 95 % intervals. {learn:,} queries were "
        f"learned from, and all search {len(searches.documents):,} documents."
    )
    problems = dict.fromkeys(
        f"Not tried: to {trial.candidate.label}, because {trial.problem}." for trial in result.trials if trial.problem
    )
    return "\n".join([align_columns(rows, left=(0,)), about, *problems])


def _format_trial(trial: Trial, result: AdaptationResult) -> list[str]:
    label = ("* " if trial is result.recommended else "  ") + trial.candidate.label
    if trial.relevance is None:
        missing = [MISSING] * (2 if result.searches.crossed else 3)
        return [label, f"{trial.vector_bytes:,}", "not tried", *missing]
    baseline = result.baseline.measured_relevance
    measured = [
        *([] if result.searches.crossed else [(trial.relevance.choose, baseline.choose)]),
        (trial.relevance.report, baseline.report),
        *((after, baseline.out_of_domain[name]) for name, after in trial.relevance.out_of_domain.items()),
    ]
    gains = [_format_points(after, None if trial is result.baseline else before) for after, before in measured]
    again = f" + {format_duration(trial.encode_seconds)} to encode again" if trial.candidate.encodes_again else ""
    return [label, f"{trial.vector_bytes:,}", *gains, format_duration(trial.seconds) + again]


def _format_points(after: NDArray[np.float64], before: NDArray[np.float64] | None) -> str:
    """Return the mean of nDCG@10 in points, or, given `before`, the mean difference to `before` with its interval."""
    if before is None:
        return f"{100 * float(after.mean()):.1f}"
    return _format_difference(compare(after, before))


def _format_difference(difference: Interval) -> str:
    half = MISSING if difference.reach is None else f"{100 * difference.reach:.1f}"
    return f"{100 * difference.value:+.1f} ± {half}"
