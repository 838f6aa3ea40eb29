"""The result of an adaptation as sentences, as a table for the terminal, and as JSON."""

from typing import Any

import numpy as np

from lathe.training.comparison import Array, Interval, compare
from lathe.training.deciding.adapt import AS_IS, Adaptation
from lathe.training.deciding.trial import Trial, choose_trial, cross_validate
from lathe.training.reporting.text import MISSING, align_columns, format_duration


def to_json(result: Adaptation) -> dict[str, Any]:
    """Convert the result of an adaptation to a dict that can be serialized as JSON.

    Returns:
        `{sentence, notes, recommended, bytes, source, encoder, queries, documents, rows, trials}`. `recommended` is the
        name of a candidate. `queries` has the numbers of queries to learn from, to choose by and to report on. `trials`
        has a dict for every trial, see `describe_trial`.
    """
    searches = result.searches
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
        "trials": [describe_trial(trial, result) for trial in result.trials],
    }


def describe_trial(trial: Trial, result: Adaptation) -> dict[str, Any]:
    """Convert a trial to a dict: names, nDCG@10, gain over the baseline and costs, or the problem if it was not tried.

    A candidate that was not tried has only name, bytes and problem, and only name and problem if too few queries are
    judged.
    """
    if result.shortage:
        return {"change": trial.candidate.name, "problem": trial.problem}
    described: dict[str, Any] = {
        "change": trial.candidate.name,
        "bytes": trial.bytes,
        "vector_bytes": trial.vector_bytes,
        "problem": trial.problem,
    }
    if trial.scores is None:
        return described
    baseline, searches = result.baseline, result.searches
    return described | {
        "choose": _describe_part(trial.scores_of(searches.choose), baseline.scores_of(searches.choose)),
        "report": _describe_part(trial.scores_of(searches.report), baseline.scores_of(searches.report)),
        "out_of_domain": {
            name: _describe_part(after, baseline.out_of_domain[name]) for name, after in trial.out_of_domain.items()
        },
        "fit_seconds": round(trial.seconds, 1),
        "encodes_documents_again": trial.candidate.encodes_again,
        "encode_seconds": round(trial.encode_seconds, 1),
        "notes": list(trial.notes),
    }


def _describe_part(after: Array, before: Array) -> dict[str, Any]:
    """Build the dict `{ndcg_at_10, gain, ci95}` from the scores of queries after and before a change.

    `ndcg_at_10` is the mean of `after`. `gain` is the mean difference, and `ci95` is half the length of its 95 %
    interval, or None without an interval.
    """
    difference = compare(after, before)
    return {"ndcg_at_10": float(after.mean()), "gain": difference.value, "ci95": difference.reach}


def write_sentence(result: Adaptation) -> str:
    """Write the recommendation with nDCG@10 and cost, or to leave the vectors as they are if nothing is better.

    A recommendation that is not certain to help says so. If too few queries are judged, or no candidate beats the
    unchanged vectors, the advice is to leave the vectors as they are.
    """
    chosen = result.recommended
    if result.shortage:
        return f"Leave the vectors as they are: {result.shortage}."

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

    before, after = (trial.scores_of(result.searches.report) for trial in (result.baseline, chosen))
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


def list_notes(result: Adaptation) -> list[str]:
    """List sentences on left-out data, losses on out-of-domain texts, and the certainty of the choice.

    If no candidate was tried, only left-out data are named. The certainty is the cross-validated gain of the choice,
    and a candidate with a higher mean than the recommended candidate.
    """
    chosen, searches = result.recommended, result.searches
    notes = [*searches.notes, *chosen.notes]
    if result.shortage:
        return notes

    for name, after in chosen.out_of_domain.items():
        difference = compare(after, result.baseline.out_of_domain[name])
        if difference.sign < 0:
            notes.append(
                f"Out of domain ({name}), nDCG@10 changes by {_format_difference(difference)}: if the same vectors "
                "serve other searches, measure those too."
            )
    if searches.crossed:
        chosen_by_halves = {choose_trial(result.rivals, choose).candidate.name for choose, _ in searches.folds}
        if chosen_by_halves - {AS_IS.name}:
            gain = _format_difference(cross_validate(result.rivals, searches))
            agree = "agree" if len(chosen_by_halves) == 1 else "choose differently"
            notes.append(
                f"These queries chose too, a half at a time, and the halves {agree}: chosen by one half and measured "
                f"on the other, the gain is {gain}."
            )
    rivals = [trial for trial in result.rivals if trial.scores is not None]
    # A candidate with a higher mean than the chosen one looks like a mistake in the table unless a note explains it.
    best = max(rivals, key=lambda trial: float(trial.scores_of(searches.choose).mean()))
    if best is not chosen:
        ahead = compare(best.scores_of(searches.choose), chosen.scores_of(searches.choose))
        notes.append(
            f"To {best.candidate.label} has the highest mean, {_format_difference(ahead)} more on the queries to "
            "choose by: not more than chance can make."
        )
    return notes


def format_adaptation(result: Adaptation) -> str:
    """Format an adaptation as text: the recommendation, a table of all trials if any was measured, and notes."""
    table = [] if result.shortage else [format_table(result)]
    return "\n\n".join([write_sentence(result), *table, *list_notes(result)])


def format_table(result: Adaptation) -> str:
    """Format all trials as a text table, with differences of nDCG@10 to the unchanged float vectors in points.

    Lines below the table say what was measured, and why some candidates were not tried.
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


def _format_trial(trial: Trial, result: Adaptation) -> list[str]:
    searches, baseline = result.searches, result.baseline
    label = ("* " if trial is result.recommended else "  ") + trial.candidate.label
    parts = [searches.report] if searches.crossed else [searches.choose, searches.report]
    if trial.scores is None:
        return [label, f"{trial.vector_bytes:,}", "not tried", *[MISSING] * (len(parts) + 1)]
    measured = [
        *((trial.scores_of(rows), baseline.scores_of(rows)) for rows in parts),
        *((after, baseline.out_of_domain[name]) for name, after in trial.out_of_domain.items()),
    ]
    gains = [
        f"{100 * float(np.mean(after)):.1f}" if trial is baseline else _format_difference(compare(after, before))
        for after, before in measured
    ]
    again = f" + {format_duration(trial.encode_seconds)} to encode again" if trial.candidate.encodes_again else ""
    return [label, f"{trial.vector_bytes:,}", *gains, format_duration(trial.seconds) + again]


def _format_difference(difference: Interval) -> str:
    half = MISSING if difference.reach is None else f"{100 * difference.reach:.1f}"
    return f"{100 * difference.value:+.1f} ± {half}"
