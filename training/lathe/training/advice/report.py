"""Advice as an HTML page, as JSON, and as plain text for the terminal, with its tables and figures."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from lathe.training.advice.advise import Advice
from lathe.training.advice.debiasing import CONFIDENCE, LARGE_MEAN, NOTHING, DebiasingComparison
from lathe.training.advice.evidence import MIN_LEAD, Evidence, Matryoshka, find_failing_cuts
from lathe.training.advice.places.decision import PlaceDecision
from lathe.training.advice.sizes import ReducerComparison
from lathe.training.comparison import Interval
from lathe.training.reporting.figures import create_panels, draw_figures, plot_curves, use_plain_tick_labels
from lathe.training.reporting.page import Section, format_text, render_page, render_sentences
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_bytes, format_number, format_percent, format_points
from lathe.transforms.linear import MIN_MEAN_NORM

TEMPLATE = Path(__file__).with_name("evidence.txt.j2")
"""Template of the sentences about the evidence."""
SMALL_MEAN = 0.2
"""‖μ‖ of unit vectors up to which it is called small."""
FORMAT_MRR = partial(format_number, spec=".2f", scale=100)
"""Format of a mean reciprocal rank, × 100."""
MEASURES = {
    "local_spearman": "local Spearman",
    "recall_at_10": "recall@10",
    "rescored_4x": "recall@10, rescored 4×",
    "retrieval": "split-half retrieval, MRR",
}
"""Title of the panel of each measure, by field name of `ReducerTrial`."""


def summarize_evidence(advice: Advice, evidence: Evidence) -> list[str]:
    """Return the evidence as sentences.

    They cover mean direction, debiasing, first coordinates, too small a sample, and failed fits.
    """
    failing = find_failing_cuts(evidence.matryoshka.cuts) if evidence.matryoshka else []
    data = vars(advice) | vars(evidence)
    data |= {
        "failing_cuts": sorted(failing, key=lambda cut: cut.first - cut.random),
        "large_mean": LARGE_MEAN,
        "min_lead": MIN_LEAD,
        "min_mean_norm": MIN_MEAN_NORM,
        "nothing": NOTHING,
        "small_mean": SMALL_MEAN,
    }
    return [*render_sentences(TEMPLATE, data), *evidence.problems]


def _build_sections(advice: Advice) -> Iterator[Section]:
    decision = advice.decision
    tables = {"What it can hold": _build_option_table(decision)} if decision.options else {}
    yield Section(decision.sentence, list_notes(advice), tables=tables)
    if advice.evidence is not None:
        yield Section(
            f"Evidence: {advice.source}", summarize_evidence(advice, advice.evidence), tables=_build_tables(advice)
        )


def list_notes(advice: Advice) -> list[str]:
    """Return the notes on the decision and on the sample, as sentences."""
    decision = advice.decision
    notes = [*decision.notes, *advice.notes]
    if decision.options:
        notes.append(
            f"Measured with {decision.queries:,} queries among {decision.sampled_rows:,} rows, by exact searches: a "
            "graph loses a little more."
        )
    return notes


def render_html(advice: Advice) -> str:
    """Return the advice as one self-contained HTML page with sentences, commands, figures and tables."""
    encoder = advice.encoder["name"] if advice.encoder else "vectors of no named encoder"
    about = f"{advice.distinct:,} distinct of {advice.rows:,} rows, {encoder}; {advice.heldout:,} rows held out"
    first, *others = _build_sections(advice)
    # Commands keep their lines and their indentation.
    first = replace(first, code="\n".join(advice.decision.commands))
    figures = _draw_figures(advice.evidence) if advice.evidence else {}
    return render_page([first, *(replace(section, figures=figures) for section in others)], about)


def to_json(advice: Advice) -> dict[str, Any]:
    """Return the advice as a JSON-serializable dict.

    It has all fields of `Advice`, `sentence` (the decision) and `sentences` (the evidence).
    """
    sentences = summarize_evidence(advice, advice.evidence) if advice.evidence else []
    return {"sentence": advice.decision.sentence, "sentences": sentences} | asdict(advice)


def format_evidence(advice: Advice) -> str:
    """Return the notes of the advice as plain text, or if evidence was measured, all sections with their tables."""
    if advice.evidence is None:
        return "\n".join(list_notes(advice))
    return "\n\n".join(filter(None, map(format_text, _build_sections(advice))))


def _build_tables(advice: Advice) -> dict[str, Table]:
    evidence = advice.evidence
    if evidence is None:
        return {}
    debiasing = "Debiasing: split-half retrieval, where each half of a text searches for the other"
    tables = {
        "Mean direction": _build_mean_direction_table(advice, evidence),
        debiasing: build_debiasing_table(evidence.debiasing) if evidence.debiasing else None,
        "Fewer dimensions": _build_size_table(evidence.sizes) if evidence.sizes else None,
        "Do the first coordinates hold more: recall@10 in per cent": (
            _build_first_coordinate_table(evidence.matryoshka) if evidence.matryoshka else None
        ),
    }
    return {title: table for title, table in tables.items() if table}


def _build_option_table(decision: PlaceDecision) -> Table:
    best = decision.chosen or decision.before
    return Table.from_records(
        (
            {
                f"{decision.rows:,} rows": option.candidate.words + (" ←" if option == best else ""),
                "beside": option.candidate.beside_words,
                "ranked": "none" if option.multiple == 1 else f"{10 * option.multiple}",
                "vectors": format_bytes(option.bytes.data),
                "graph": format_bytes(option.bytes.graph),
                "full": format_bytes(option.bytes.beside),
                "recall@10 alone": option.alone.value,
                "recall@10": option.recall.value,
                "from": option.recall.low,
                "to": option.recall.high,
                "predicted/found": f"{option.recall.predicted:.3f}/{option.recall.sampled:.3f}",
            }
            for option in decision.options
        ),
        default=".3f",
    )


def _build_mean_direction_table(advice: Advice, evidence: Evidence) -> Table:
    diagnosis = evidence.diagnosis
    alignment, directions = diagnosis["alignment"], diagnosis["dimensions_for"]
    return Table.from_rows(
        [
            ["held-out rows", "measured", "beside it"],
            ["mean direction ‖μ‖", f"{diagnosis['mean_norm']:.3f}", f"by chance alone {diagnosis['noise_floor']:.3f}"],
            [
                "  |cos| to the top direction",
                format_number(alignment["centered"], ".3f"),
                f"of uncentred vectors {format_number(alignment['uncentered'], '.3f')}",
            ],
            [
                "rows of unit length",
                format_percent(diagnosis["norms"]["unit"]),
                f"{diagnosis['zero_rows']:,} rows are zero",
            ],
            [
                "IsoScore",
                f"{diagnosis['isoscore']:.3f}",
                f"spread over {diagnosis['participation_ratio']:.0f} directions",
            ],
            ["rank", f"{diagnosis['rank']:,}", f"of {diagnosis['dimensions']:,} dimensions"],
            *(
                [f"directions for {float(share):.0%}", f"{count:,}", "of the variance"]
                for share, count in directions.items()
            ),
            ["rows", f"{advice.distinct:,}", f"{advice.heldout:,} held out, {evidence.cut:,} of them cut in two"],
        ]
    )


def build_debiasing_table(debiasing: DebiasingComparison) -> Table:
    """Return the table of debiasing methods, with a row for each.

    The columns are steps, reciprocal rank of split-half retrieval and its gain, norm of the mean, and recall@10. An
    arrow marks the recommended method.
    """
    gain = f"gain, {100 * CONFIDENCE:.1f} % interval"
    return Table.from_records(
        (
            {
                "": trial.method + (" ←" if trial.method == debiasing.chosen else ""),
                "steps": "" if trial.method == NOTHING else trial.steps,
                "MRR × 100": trial.retrieval,
                gain: trial.gain or "",
                "‖μ‖ after": trial.mean_norm,
                "recall@10 of raw": trial.recall_at_10,
            }
            for trial in debiasing.trials
        ),
        {"MRR × 100": FORMAT_MRR, gain: format_points},
        ".3f",
    )


def _build_size_table(sizes: ReducerComparison) -> Table:
    return Table.from_records(
        (
            {
                f"among {sizes.rows:,} rows": trial.reducer or "full width",
                "dimensions": trial.dimensions,
                "local Spearman": trial.local_spearman,
                "recall@10": trial.recall_at_10,
                "rescored 4×": trial.rescored_4x.value,
                "MRR × 100": trial.retrieval,
            }
            for trial in (sizes.full, *sizes.trials)
        ),
        {"dimensions": "d", "MRR × 100": FORMAT_MRR},
        ".3f",
    )


def _build_first_coordinate_table(matryoshka: Matryoshka) -> Table:
    return Table.from_records(
        (
            {
                "": f"{cut.dimensions} coordinates",
                "the first": cut.first,
                "random ones": cut.random,
                "the best of those": cut.best,
            }
            for cut in matryoshka.cuts
        ),
        default=".1f",
    )


def _draw_figures(evidence: Evidence) -> dict[str, str]:
    plots = {
        "Debiasing: points gained in split-half retrieval": _plot_gains,
        "Fewer dimensions: what is kept": _plot_sizes,
        "Where the variance lies": _plot_spectrum,
    }
    return draw_figures(plots, evidence)


def _plot_gains(evidence: Evidence) -> Any:
    gains = {
        trial.method: trial.gain for trial in (evidence.debiasing.trials if evidence.debiasing else ()) if trial.gain
    }
    if not gains:
        return None

    figure, (axis,) = create_panels(1, size=(6, 0.6 + 0.35 * len(gains)))
    for row, gain in enumerate(gains.values()):
        (low, high), color = gain.bounds, {1: "tab:green", 0: "grey", -1: "tab:red"}[gain.sign]
        axis.errorbar(gain.value, row, xerr=[[gain.value - low], [high - gain.value]], fmt="o", color=color, capsize=3)

    axis.set_yticks(range(len(gains)), list(gains))
    axis.invert_yaxis()
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.set_xlabel("points of mean reciprocal rank × 100, to doing nothing")

    return figure


def _plot_sizes(evidence: Evidence) -> Any:
    if evidence.sizes is None or not evidence.sizes.trials:
        return None

    measures = [name for name in MEASURES if getattr(evidence.sizes.full, name) is not None]
    figure, axes = create_panels(len(measures), len(measures), (3.4, 3))
    for axis, measure in zip(axes, measures, strict=True):
        values = ((trial, getattr(trial, measure)) for trial in evidence.sizes.trials)
        plot_curves(
            axis,
            (
                (
                    trial.reducer,
                    trial.dimensions,
                    measured if isinstance(measured, Interval) else Interval(measured, None, None),
                )
                for trial, measured in values
            ),
        )
        axis.set_title(MEASURES[measure], fontsize=10)
        axis.set_xlabel("dimensions")

    axes[0].legend(fontsize=7)
    return figure


def _plot_spectrum(evidence: Evidence) -> Any:
    ranks = evidence.diagnosis["spectrum"]
    if len(ranks) < 2:
        return None

    figure, (axis,) = create_panels(1, size=(5, 3))
    axis.plot([rank for rank, _ in ranks], [100 * share for _, share in ranks], "o-", markersize=3)
    axis.set_xscale("log", base=2)
    use_plain_tick_labels(axis.xaxis)
    axis.set_xlabel("direction")
    axis.set_ylabel("% of the variance")

    return figure
