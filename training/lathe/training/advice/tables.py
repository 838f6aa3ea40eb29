"""Tables of an advice."""

from functools import partial

from lathe.training.advice.advise import Advice
from lathe.training.advice.debiasing import CONFIDENCE, NOTHING
from lathe.training.advice.index_plan import list_best
from lathe.training.advice.places.decision import PlaceDecision
from lathe.training.advice.transfer import HELD_OUT
from lathe.training.reporting.tables import Format, Table
from lathe.training.reporting.text import (
    format_bytes,
    format_half_width,
    format_number,
    format_percent,
    format_points,
)

FORMAT_MRR = partial(format_number, spec=".2f", scale=100)
"""Format of a mean reciprocal rank, × 100."""


def build_tables(advice: Advice) -> dict[str, Table]:
    """Build every table for which the advice has data, and return them by title."""
    tables = {
        "Mean direction": _build_mean_direction_table(advice),
        "Debiasing: split-half retrieval, where each half of a text searches for the other": build_debiasing_table(
            advice
        ),
        "Fewer dimensions": _build_size_table(advice),
        "Bytes a vector: recall@10, and that of what databases do by themselves": _build_budget_table(advice),
        "Do the first coordinates hold more: recall@10 in per cent": _build_first_coordinate_table(advice),
        f"The recommended chain, {advice.best.steps if advice.best else ''}": _build_transfer_table(advice),
        "An index in Lathe": _build_index_table(advice),
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


def _build_mean_direction_table(advice: Advice) -> Table:
    """Build the table on the mean direction μ of the held-out rows.
    It has the norm of μ beside the one that chance alone gives, its alignment, IsoScore, rank and row counts.
    """
    diagnosis = advice.diagnosis
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
            ["rows", f"{advice.distinct:,}", f"{advice.heldout:,} held out, {advice.cut:,} of them cut in two"],
        ]
    )


def build_debiasing_table(advice: Advice) -> Table:
    """Build the table of the debiasing methods: steps, split-half MRR and gain, norm of the mean, and recall@10.
    The recommended method is marked with an arrow.
    """
    debiasing, gain = advice.debiasing, f"gain, {100 * CONFIDENCE:.1f} % interval"
    return Table.from_records(
        (
            {
                "": trial.method + (" ←" if debiasing and trial.method == debiasing.chosen else ""),
                "steps": "" if trial.method == NOTHING else trial.steps,
                "MRR × 100": trial.retrieval,
                gain: trial.gain or "",
                "‖μ‖ after": trial.mean_norm,
                "recall@10 of raw": trial.recall_at_10,
            }
            for trial in (debiasing.trials if debiasing else ())
        ),
        {"MRR × 100": FORMAT_MRR, gain: format_points},
        ".3f",
    )


def _build_size_table(advice: Advice) -> Table:
    """Build the table of what each reducer preserves and costs at each number of dimensions, full dimensions first.
    The recommended chain is marked with an arrow, the runner-up with "(second)".
    """
    sizes, marks = advice.sizes, {}
    for chain, mark in ((advice.second, " (second)"), (advice.best, " ←")):
        if chain is not None:
            marks[chain.reducer, chain.dimensions] = mark

    name = f"among {sizes.rows:,} rows" if sizes else ""
    return Table.from_records(
        (
            {
                name: (trial.reducer or "full width") + marks.get((trial.reducer, trial.dimensions), ""),
                "dimensions": trial.dimensions,
                "local Spearman": trial.local_spearman,
                "recall@10": trial.recall_at_10,
                "rescored 4×": trial.rescored_4x.value,
                "MRR × 100": trial.retrieval,
                "bytes": trial.bytes,
                "GEMM ms": trial.gemm_ms,
            }
            for trial in ((sizes.full, *sizes.trials) if sizes else ())
        ),
        {"dimensions": "d", "MRR × 100": FORMAT_MRR, "bytes": ",", "GEMM ms": ".1f"},
        ".3f",
    )


def _build_budget_table(advice: Advice) -> Table:
    """Build the table of the best chain at each budget of bytes a vector, beside the databases' own methods.
    The recommended codes are marked with an arrow.
    """
    budgets, of_three = advice.budgets, partial(format_half_width, spec=".3f")
    records = []
    for trial in budgets.best_chains() if budgets else ():
        rivals = budgets.best_settings(trial.budget) if budgets else {}
        records.append(
            {
                "bytes": trial.budget,
                "chain": trial.setting + (" ←" if trial == advice.fewest_bytes else ""),
                "recall@10": trial.recall_at_10,
                "rescored 4×": trial.rescored_4x,
                "split-half, points": trial.loss,
            }
            | {method: rival.recall_at_10.value for method, rival in rivals.items()}
        )

    formats: dict[str, Format] = {"bytes": "d", "recall@10": of_three, "rescored 4×": of_three}
    return Table.from_records(records, formats | {"split-half, points": format_half_width}, ".3f")


def _build_first_coordinate_table(advice: Advice) -> Table:
    """Build the table of recall@10 of the first coordinates and of random ones, by number of coordinates."""
    return Table.from_records(
        (
            {
                "": f"{cut.dimensions} coordinates",
                "the first": cut.first,
                "random ones": cut.random,
                "the best of those": cut.best,
            }
            for cut in (advice.matryoshka.cuts if advice.matryoshka else ())
        ),
        default=".1f",
    )


def _build_transfer_table(advice: Advice) -> Table:
    """Build the table of the recommended chain's measures on held-out rows and on out-of-domain text."""
    gain = "gain, 95 % interval"
    return Table.from_records(
        (
            {
                "": "held out (the chain was chosen on these)" if transfer.text == HELD_OUT else transfer.text,
                "rows": transfer.rows,
                "local Spearman": transfer.measures["local_spearman"],
                "recall@10": transfer.measures["recall_at_10"],
                "rescored 4×": transfer.measures["recall_at_10_rescored_4x"],
                "MRR × 100 raw": transfer.retrieval,
                gain: transfer.gain,
            }
            for transfer in advice.transfer
        ),
        {"rows": ",", "MRR × 100 raw": FORMAT_MRR, gain: format_points},
        ".3f",
    )


def _build_index_table(advice: Advice) -> Table:
    """Build the table of the best index setting for each chain and number of links.
    The setting to build comes first and is marked with an arrow.
    """
    plan = advice.index_plan
    rows = list_best(plan.settings, plan.goal.recall) if plan else []
    if plan and plan.chosen:
        other_settings = [
            setting for setting in rows if (setting.chain, setting.m) != (plan.chosen.chain, plan.chosen.m)
        ]
        rows = [plan.chosen, *other_settings]

    return Table.from_records(
        (
            {
                "chain": setting.chain + (" ←" if plan and setting == plan.chosen else ""),
                "links": setting.m,
                "ef": setting.ef,
                "rescore": "no" if setting.rescore == 1 else f"{setting.rescore}×",
                "recall": setting.recall,
                "on the sample": setting.sampled_recall,
                "memory": format_bytes(setting.memory),
                "files": format_bytes(setting.disk),
                "µs a search": setting.microseconds,
                "build s": setting.build_seconds,
            }
            for setting in rows
        ),
        {"recall": ".3f", "on the sample": ".3f", "µs a search": ",.0f", "build s": ",.0f"},
    )
