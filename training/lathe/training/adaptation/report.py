"""The ladder as sentences, as a table for the terminal, and as JSON."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.adaptation.ladder import Ladder
from lathe.training.adaptation.trial import AS_IS, Trial, choose_trial, cross_validate
from lathe.training.comparison import Interval, compare
from lathe.training.reporting.text import MISSING, align_columns


def to_json(ladder: Ladder) -> dict[str, Any]:
    """Convert a ladder to a JSON-serializable dict.

    Returns:
        `{sentence, notes, recommended, source, encoder, queries, documents, trials}`. `recommended` is the name of a
        rung, `queries` has the numbers of queries to learn from, to choose by and to report on, and `trials` are as
        `Trial.describe` returns them, with differences to the encoder's own floats.
    """
    searches, baseline = ladder.searches, ladder.baseline.relevance
    described = [
        trial.describe(baseline) if baseline is not None else {"rung": trial.rung.name, "problem": trial.problem}
        for trial in ladder.trials
    ]
    return {
        "sentence": write_sentence(ladder),
        "notes": list_notes(ladder),
        "recommended": ladder.recommended.rung.name,
        "bytes": ladder.recommended.bytes,
        "source": ladder.request.source.path,
        "encoder": ladder.encoder.name,
        "queries": searches.count_queries(),
        "documents": len(searches.documents),
        "rows": searches.rows,
        "trials": described,
    }


def write_sentence(ladder: Ladder) -> str:
    """Write the recommendation: what to do, what it gains on the queries that were set aside, and what it costs."""
    chosen = ladder.recommended
    if chosen.relevance is None:
        return f"Leave the vectors as they are: {chosen.problem}."

    if chosen is ladder.baseline:
        return (
            "Leave the vectors as they are: on the queries to choose by, nothing that was tried beats that beyond "
            "chance."
        )

    stored = ""
    if chosen.bytes is not None:
        stored = f"store {chosen.bytes:,} bytes a vector instead of {ladder.baseline.vector_bytes:,}"
    if chosen.rung is AS_IS:
        advice = f"No change improves search beyond chance; to save bytes, {stored}"
    else:
        label = chosen.rung.label
        advice = " and ".join(filter(None, (label[:1].upper() + label[1:], stored)))

    before, after = (trial.require_relevance().report for trial in (ladder.baseline, chosen))
    if not ladder.is_certain:
        advice = f"Nothing is certain to help; the likeliest is to {chosen.rung.label}"
        advice += f" and to {stored}" if stored else ""
    difference = _format_difference(compare(after, before))
    apart = "taught nothing" if ladder.searches.crossed else "neither taught nor chose"
    measured = (
        f"nDCG@10 of {len(after):,} queries that {apart} goes from {100 * before.mean():.1f} to "
        f"{100 * after.mean():.1f} ({difference})"
    )
    return f"{advice}: {measured}. {_describe_cost(ladder)}"


def _describe_cost(ladder: Ladder) -> str:
    """Return a sentence on what the recommended change asks for."""
    chosen, rows = ladder.recommended, ladder.searches.rows
    if chosen.rung.encodes_again:
        return f"All {rows:,} documents must be encoded again, about {_format_seconds(chosen.encode_seconds)} here."
    return "No document is encoded again."


def list_notes(ladder: Ladder) -> list[str]:
    """List sentences on what the recommendation leaves open: losses out of domain, dearer rungs, what was left out."""
    chosen = ladder.recommended
    notes = [*ladder.searches.notes, *chosen.notes]
    if chosen.relevance is None or ladder.baseline.relevance is None:
        return notes

    for name, after in chosen.relevance.out_of_domain.items():
        difference = compare(after, ladder.baseline.relevance.out_of_domain[name])
        if difference.sign < 0:
            notes.append(
                f"Out of domain ({name}), nDCG@10 changes by {_format_difference(difference)}: if the same vectors "
                "serve other searches, measure those too."
            )
    trials = ladder.coded or ladder.floats
    chosen_by_halves = {choose_trial(trials, fold).rung.name for fold in range(2)} if ladder.searches.crossed else set()
    if chosen_by_halves - {AS_IS.name}:
        gain = _format_difference(cross_validate(trials, ladder.baseline.relevance))
        agree = "agree" if len(chosen_by_halves) == 1 else "choose differently"
        notes.append(
            f"These queries chose too, a half at a time, and the halves {agree}: chosen by one half and measured on "
            f"the other, the gain is {gain}."
        )
    rivals = [trial for trial in trials if trial.relevance is not None]
    best = max(rivals, key=lambda trial: float(trial.require_relevance().choose.mean()))
    if best is not chosen:
        ahead = compare(best.require_relevance().choose, chosen.relevance.choose)
        notes.append(
            f"To {best.rung.label} has the highest mean, {_format_difference(ahead)} more on the queries to choose by: "
            "not more than chance can make."
        )
    return notes


def format_ladder(ladder: Ladder) -> str:
    """Format the recommendation as text: its sentence, the table of all trials, and notes."""
    parts = [write_sentence(ladder)]
    if ladder.baseline.relevance is not None:
        parts.append(format_table(ladder))
    parts += list_notes(ladder)
    return "\n\n".join(parts)


def format_table(ladder: Ladder) -> str:
    """Format all trials as a table, with differences to the encoder's own floats in points of nDCG@10."""
    searches = ladder.searches
    learn, choose, report = searches.count_queries().values()
    chosen_by = [] if searches.crossed else [f"on {choose:,} to choose by"]
    header = ["change", "bytes", *chosen_by, f"on {report:,} set aside", "out of domain", "takes"]
    rows = [header, *(_format_trial(trial, ladder) for trial in ladder.trials)]
    about = (
        f"nDCG@10 in points against {ladder.encoder.name} as it is, with 95 % intervals. {learn:,} queries were "
        f"learned from, and all search {len(searches.documents):,} documents."
    )
    problems = dict.fromkeys(
        f"Not tried: to {trial.rung.label}, because {trial.problem}." for trial in ladder.trials if trial.problem
    )
    return "\n".join([align_columns(rows, left=(0,)), about, *problems])


def _format_trial(trial: Trial, ladder: Ladder) -> list[str]:
    """Format a trial as a row of the table, in which the recommended one is marked."""
    label = ("* " if trial is ladder.recommended else "  ") + trial.rung.label
    if trial.relevance is None:
        missing = [MISSING] * (2 if ladder.searches.crossed else 3)
        return [label, f"{trial.vector_bytes:,}", "not tried", *missing]
    baseline = ladder.baseline.require_relevance()
    measured = [
        *([] if ladder.searches.crossed else [(trial.relevance.choose, baseline.choose)]),
        (trial.relevance.report, baseline.report),
        *((after, baseline.out_of_domain[name]) for name, after in trial.relevance.out_of_domain.items()),
    ]
    gains = [_format_points(after, None if trial is ladder.baseline else before) for after, before in measured]
    again = f" + {_format_seconds(trial.encode_seconds)} to encode again" if trial.rung.encodes_again else ""
    return [label, f"{trial.vector_bytes:,}", *gains, _format_seconds(trial.seconds) + again]


def _format_points(after: NDArray[np.float64], before: NDArray[np.float64] | None) -> str:
    """Format a mean as points, or its difference to another mean if there is another."""
    if before is None:
        return f"{100 * float(after.mean()):.1f}"
    return _format_difference(compare(after, before))


def _format_difference(difference: Interval) -> str:
    half = MISSING if difference.reach is None else f"{100 * difference.reach:.1f}"
    return f"{100 * difference.value:+.1f} ± {half}"


def _format_seconds(seconds: float) -> str:
    """Format a duration: seconds up to two minutes, minutes up to two hours, hours beyond."""
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
