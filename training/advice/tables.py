"""Tables of an advice, as rows of text cells with the header first."""

from training.advice.advise import Advice
from training.advice.debiasing import CONFIDENCE, NOTHING
from training.advice.sizes import SizeTrial
from training.advice.transfer import HELD_OUT
from training.reporting.text import format_points

Rows = list[list[str]]


def tables(advice: Advice) -> dict[str, Rows]:
    """Build every table for which the advice has data; return rows of cells by title, header first."""
    found = {"Mean direction": direction_rows(advice)}
    if advice.debiasing is not None:
        found["Debiasing: do halves of a text find each other"] = debiasing_rows(advice)
    if advice.sizes is not None:
        found["Fewer dimensions"] = size_rows(advice)
    if advice.matryoshka is not None:
        found["Do the first coordinates hold more: recall@10 in per cent"] = matryoshka_rows(advice)
    if advice.elsewhere:
        found[f"The recommended chain, {advice.best.steps if advice.best else ''}"] = elsewhere_rows(advice)
    return found


def direction_rows(advice: Advice) -> Rows:
    """Build the table of ‖μ‖ against its noise floor, of IsoScore and of row counts."""
    seen = advice.diagnosis
    return [
        ["held-out rows", "measured", "beside it"],
        ["mean direction ‖μ‖", f"{seen['mean_norm']:.3f}", f"by chance alone {seen['noise_floor']:.3f}"],
        ["IsoScore", f"{seen['isoscore']:.3f}", f"spread over {seen['participation_ratio']:.0f} directions"],
        ["rows", f"{advice.distinct:,}", f"{advice.heldout:,} held out, {advice.cut:,} of them cut in two"],
    ]


def debiasing_rows(advice: Advice) -> Rows:
    """Build the table of the debiasing methods, one row each; the recommended method is marked with an arrow."""
    assert advice.debiasing is not None
    rows = [["", "steps", "MRR × 100", f"gain, {100 * CONFIDENCE:.1f} % interval", "‖μ‖ after", "recall@10 of raw"]]
    for one in advice.debiasing.trials:
        chosen = " ←" if one.method == advice.debiasing.chosen else ""
        rows.append(
            [
                one.method + chosen,
                "" if one.method == NOTHING else one.steps,
                figure(one.retrieval, 100, 2),
                "" if one.gain is None else format_points(one.gain),
                figure(one.mean_norm, 1, 3),
                figure(one.recall_at_10, 1, 3),
            ]
        )
    return rows


def size_rows(advice: Advice) -> Rows:
    """Build the table of full dimensions and of every reducer at every number of dimensions."""
    assert advice.sizes is not None
    header = [
        f"among {advice.sizes.rows:,} rows",
        "dimensions",
        "local Spearman",
        "recall@10",
        "rescored 4×",
        "MRR × 100",
        "bytes",
        "GEMM ms",
    ]
    return [header, *(size_row(one, advice) for one in (advice.sizes.full, *advice.sizes.trials))]


def size_row(one: SizeTrial, advice: Advice) -> list[str]:
    """Format the measurements of one reduction as cells; mark the recommended one and the runner-up."""
    picked = [(chain.reducer, chain.dimensions) for chain in (advice.best, advice.second) if chain is not None]
    place = (one.reducer, one.dimensions)
    mark = " ←" if picked[:1] == [place] else " (second)" if picked[1:] == [place] else ""
    return [
        (one.reducer or "full width") + mark,
        str(one.dimensions),
        f"{one.local_spearman:.3f}",
        f"{one.recall_at_10:.3f}",
        f"{one.rescored_4x.value:.3f}",
        figure(one.retrieval, 100, 2),
        f"{one.bytes:,}",
        f"{one.gemm_ms:.1f}",
    ]


def matryoshka_rows(advice: Advice) -> Rows:
    """Build the table of recall@10 of the first coordinates and of random coordinates."""
    assert advice.matryoshka is not None
    return [
        ["", "the first", "random ones", "the best of those"],
        *(
            [f"{cut.dimensions} coordinates", f"{cut.first:.1f}", f"{cut.random:.1f}", f"{cut.best:.1f}"]
            for cut in advice.matryoshka.cuts
        ),
    ]


def elsewhere_rows(advice: Advice) -> Rows:
    """Build the table of the recommended chain's measures on held-out rows and on out-of-domain text."""
    return [
        ["", "rows", "local Spearman", "recall@10", "rescored 4×", "MRR × 100 raw", "gain, 95 % interval"],
        *(
            [
                "held out (the chain was chosen on these)" if one.text == HELD_OUT else one.text,
                f"{one.rows:,}",
                figure(one.measures["local_spearman"], 1, 3),
                figure(one.measures["recall_at_10"], 1, 3),
                figure(one.measures["recall_at_10_rescored_4x"], 1, 3),
                figure(one.retrieval, 100, 2),
                "–" if one.gain is None else format_points(one.gain),
            ]
            for one in advice.elsewhere
        ),
    ]


def figure(value: float | None, scale: float, places: int) -> str:
    """Format `scale · value` with so many decimal places, or as a dash if the value is None."""
    return "–" if value is None else f"{scale * value:.{places}f}"
