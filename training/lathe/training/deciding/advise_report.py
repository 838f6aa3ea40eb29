"""Advice as an HTML page, as JSON, and as plain text for the terminal, with its tables and figures."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from lathe.training.comparison import Interval
from lathe.training.deciding.advise import Advice
from lathe.training.deciding.debiasing import CONFIDENCE, LARGE_MEAN, NOTHING
from lathe.training.deciding.evidence import MIN_LEAD, Evidence, find_failing_cuts
from lathe.training.deciding.places.decision import PlaceDecision
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
    """Write the evidence as sentences.

    They are about the mean direction, debiasing, the first coordinates, questions that the sample is too small for, and
    methods that could not be fitted.
    """
    failing = find_failing_cuts(evidence.matryoshka.cuts) if evidence.matryoshka else []
    data = vars(advice) | vars(evidence)
    data |= {
        "failing_cuts": sorted(failing, key=lambda cut: cut["first"] - cut["random"]),
        "large_mean": LARGE_MEAN,
        "min_lead": MIN_LEAD,
        "min_mean_norm": MIN_MEAN_NORM,
        "nothing": NOTHING,
        "small_mean": SMALL_MEAN,
    }
    return [*render_sentences(TEMPLATE, data), *evidence.problems]


def _build_sections(advice: Advice, figures: Mapping[str, str]) -> Iterator[Section]:
    decision, evidence = advice.decision, advice.evidence
    tables = {"What it can hold": _build_option_table(decision)} if decision.options else {}
    # Commands keep their lines and their indentation.
    yield Section(decision.sentence, list_notes(advice), tables=tables, code="\n".join(decision.commands))
    if evidence is not None:
        sentences, tables = summarize_evidence(advice, evidence), _build_tables(advice, evidence)
        yield Section(f"Evidence: {advice.source}", sentences, figures, tables)


def list_notes(advice: Advice) -> list[str]:
    """List sentences on the decision and the sample: how to roll back, notes, and how the options were measured."""
    decision = advice.decision
    notes = [*filter(None, [decision.undo]), *decision.notes, *advice.notes]
    if decision.options:
        notes.append(
            f"Measured with {decision.queries:,} queries among {decision.sampled_rows:,} rows, by exact searches: a "
            "search in a graph has slightly less recall."
        )
    return notes


def render_html(advice: Advice) -> str:
    """Render the advice as one self-contained HTML page with sentences, commands, figures and tables."""
    encoder = advice.encoder["name"] if advice.encoder else "vectors of no named encoder"
    about = f"{advice.distinct:,} distinct of {advice.rows:,} rows, {encoder}; {advice.heldout:,} rows held out"
    plots = {
        "Debiasing: points gained in split-half retrieval": _plot_gains,
        "Fewer dimensions: what is kept": _plot_sizes,
        "Where the variance lies": _plot_spectrum,
    }
    figures = draw_figures(plots, advice.evidence) if advice.evidence else {}
    return render_page(list(_build_sections(advice, figures)), about)


def to_json(advice: Advice) -> dict[str, Any]:
    """Convert the advice to a JSON-serializable dict.

    The dict has all fields of `Advice`, `sentence` (the decision), and `sentences` (the evidence, empty if evidence was
    not measured).
    """
    sentences = summarize_evidence(advice, advice.evidence) if advice.evidence else []
    return {"sentence": advice.decision.sentence, "sentences": sentences} | asdict(advice)


def format_evidence(advice: Advice) -> str:
    """Format the advice as plain text: the notes alone, or with evidence all sections with their tables.

    Without evidence, the decision's sentence, tables and commands are not part of the text.
    """
    if advice.evidence is None:
        return "\n".join(list_notes(advice))
    return "\n\n".join(filter(None, map(format_text, _build_sections(advice, figures={}))))


def _build_option_table(decision: PlaceDecision) -> Table:
    best = decision.chosen or decision.before
    return Table.from_records(
        (
            {
                f"{decision.rows:,} rows": option.candidate.words + (" ←" if option == best else ""),
                "beside": option.candidate.beside_words,
                "ranked": "none" if option.multiple == 1 else f"{10 * option.multiple}",
                "vectors": format_bytes(option.bytes["data"]),
                "graph": format_bytes(option.bytes["graph"]),
                "full": format_bytes(option.bytes["beside"]),
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


def _build_tables(advice: Advice, evidence: Evidence) -> dict[str, Table]:
    tables = {"Mean direction": _build_mean_direction_table(advice, evidence)}

    if (debiasing := evidence.debiasing) is not None:
        gain = f"gain, {100 * CONFIDENCE:.1f} % interval"
        rows: list[list[Any]] = [["", "steps", "MRR × 100", gain, "‖μ‖ after", "recall@10 of raw"]]
        for trial in debiasing.trials:
            method = trial.method + (" ←" if trial.method == debiasing.chosen else "")
            steps = "" if trial.method == NOTHING else trial.steps
            rows.append([method, steps, trial.retrieval, trial.gain or "", trial.mean_norm, trial.recall_at_10])
        tables["Debiasing: split-half retrieval, where each half of a text searches for the other"] = Table.from_rows(
            rows, {"MRR × 100": FORMAT_MRR, gain: format_points}, ".3f"
        )

    if (sizes := evidence.sizes) is not None:
        among = f"among {sizes.rows:,} rows"
        rows = [[among, "dimensions", "local Spearman", "recall@10", "rescored 4×", "MRR × 100"]]
        for size in (sizes.full, *sizes.trials):
            measured = [size.local_spearman, size.recall_at_10, size.rescored_4x.value, size.retrieval]
            rows.append([size.reducer or "all dimensions", size.dimensions, *measured])
        tables["Fewer dimensions"] = Table.from_rows(rows, {"dimensions": "d", "MRR × 100": FORMAT_MRR}, ".3f")

    if evidence.matryoshka is not None and (cuts := evidence.matryoshka.cuts):
        rows = [["", "the first", "random ones", "the best of those"]]
        rows += [[f"{cut['dimensions']} coordinates", cut["first"], cut["random"], cut["best"]] for cut in cuts]
        tables["Do the first coordinates hold more: recall@10 in per cent"] = Table.from_rows(rows, default=".1f")

    return tables


def _build_mean_direction_table(advice: Advice, evidence: Evidence) -> Table:
    diagnosis = evidence.diagnosis
    centered, uncentered = (format_number(diagnosis["alignment"][key], ".3f") for key in ("centered", "uncentered"))
    norm, floor, isoscore = (f"{diagnosis[key]:.3f}" for key in ("mean_norm", "noise_floor", "isoscore"))
    unit, zero = format_percent(diagnosis["norms"]["unit"]), f"{diagnosis['zero_rows']:,} rows are zero"
    return Table.from_rows(
        [
            ["held-out rows", "measured", "compare with"],
            ["mean direction ‖μ‖", norm, f"by chance alone {floor}"],
            ["  |cos| to the top direction", centered, f"of uncentred vectors {uncentered}"],
            ["rows of unit length", unit, zero],
            ["IsoScore", isoscore, f"spread over {diagnosis['participation_ratio']:.0f} directions"],
            ["rank", f"{diagnosis['rank']:,}", f"of {diagnosis['dimensions']:,} dimensions"],
            *(
                [f"directions for {float(share):.0%}", f"{count:,}", "of the variance"]
                for share, count in diagnosis["dimensions_for"].items()
            ),
            ["rows", f"{advice.distinct:,}", f"{advice.heldout:,} held out, {evidence.cut:,} of them cut in two"],
        ]
    )


def _plot_gains(evidence: Evidence) -> Any:
    trials = evidence.debiasing.trials if evidence.debiasing else []
    gains = {trial.method: trial.gain for trial in trials if trial.gain}
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
        points = []
        for trial in evidence.sizes.trials:
            value = getattr(trial, measure)
            estimate = value if isinstance(value, Interval) else Interval(value, None, None)
            points.append((trial.reducer, trial.dimensions, estimate))
        plot_curves(axis, points)
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
