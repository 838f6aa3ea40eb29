"""Tables of an advice."""

from functools import partial

from lathe.training.advice.advise import Advice
from lathe.training.advice.debiasing import CONFIDENCE, NOTHING, DebiasingComparison
from lathe.training.advice.evidence import Evidence
from lathe.training.advice.matryoshka import Matryoshka
from lathe.training.advice.places.decision import PlaceDecision
from lathe.training.advice.sizes import SizeComparison
from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_bytes, format_number, format_percent, format_points

FORMAT_MRR = partial(format_number, spec=".2f", scale=100)
"""Format of a mean reciprocal rank, × 100."""


def build_tables(advice: Advice) -> dict[str, Table]:
    """Build every table for which the advice has evidence, and return them by title."""
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


def build_option_table(decision: PlaceDecision) -> Table:
    """Build the table of the forms that a database can hold: bytes, recall and its interval, one row each.
    The form to store is marked with an arrow.
    """
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
    """Build the table on the mean direction μ of the held-out rows.
    It has the norm of μ beside the one that chance alone gives, its alignment, IsoScore, rank and row counts.
    """
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
    """Build the table of the debiasing methods: steps, split-half MRR and gain, norm of the mean, and recall@10.
    The method that is favoured is marked with an arrow.
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


def _build_size_table(sizes: SizeComparison) -> Table:
    """Build the table of what each reducer preserves at each number of dimensions, full dimensions first."""
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
    """Build the table of recall@10 of the first coordinates and of random ones, by number of coordinates."""
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
