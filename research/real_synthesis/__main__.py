"""Synthesis with a real language model: pairs from questions of FiQA, how poor they are, encoders trained on them.

The server of the model is an OpenAI-compatible one. With --serve the benchmark starts it, and kills it once:

    python -m research.real_synthesis --data /path/to/data --endpoint http://127.0.0.1:8080/v1 --out research/results
"""

import sys
from pathlib import Path
from typing import Any

import orjson

from benchmarks.codes.data import list_document_texts
from benchmarks.report import markdown_table, parser, write_report
from lathe.training.synthesis.answer_log import AnswerLog
from research.real_synthesis.encoders import (
    Pair,
    add_encoder,
    compare_with_base,
    list_conditions,
    measure_round_trips,
    open_judges,
    read_test,
)
from research.real_synthesis.path import Plan, read_lines, synthesize, write_inputs
from research.real_synthesis.texts import describe_answers, describe_pairs

EXAMPLES = 10
"""Number of pairs in the raw figures, evenly spaced so that nobody chose them."""
STAGE_COLUMNS = ["calls", "usable at once", "calls with a usable answer", "kept", "faults of answers"]
TRAINED_COLUMNS = ["trained on", "pairs", "nDCG@10", "less base, over queries", "less base, over seeds"]


def main() -> None:
    """Make the pairs, judge them, train on them.

    Print the tables and write the raw figures.
    """
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="a folder with finance/fiqa_qa")
    options.add_argument(
        "--endpoint", required=True, metavar="URL", help="address of the model, as in a job's base_url"
    )
    options.add_argument("--model", default="smollm2-135m-instruct", help="name of the model at the endpoint")
    options.add_argument("--serve", metavar="COMMAND", help="starts the server, which is then killed once")
    options.add_argument(
        "--judge", action="append", default=[], metavar="NAME=FOLDER", help="another encoder that judges"
    )
    options.add_argument("--work", type=Path, default=Path("build/real-synthesis"), help="a stopped run continues here")
    options.add_argument("--seeds", type=int, default=60, help="questions with answers to start from")
    options.add_argument("--templates", choices=["full", "short"], default="short", help="prompts to ask with")
    options.add_argument("--trainings", type=int, default=3, help="seeds of the training on synthetic pairs")
    options.add_argument("--comparisons", type=int, default=3, help="seeds of each training on other pairs")
    options.add_argument(
        "--beside", type=Path, metavar="FOLDER", help="answers to other prompts, listed in the figures"
    )
    options.add_argument("--pairs", type=int, default=40, help="pairs of each training at most")
    options.add_argument("--only", choices=["synthesis"], help="stop after the pairs are made and counted")
    arguments = options.parse_args()
    plan = Plan(
        arguments.data,
        arguments.work,
        arguments.endpoint.rstrip("/"),
        arguments.model,
        arguments.serve,
        arguments.seeds,
        arguments.templates,
    )
    if not (plan.work / "seeds.jsonl").exists():
        write_inputs(plan)
    figures: dict[str, Any] = {"model": plan.model, "seeds": plan.seeds, "runs": synthesize(plan)}
    pairs = read_lines(plan.pairs / "pairs.jsonl")
    figures |= describe(plan, pairs)
    print(markdown_table(["stage", *STAGE_COLUMNS], list_stage_rows(figures["answers"])))
    print(orjson.dumps(figures["texts"], option=orjson.OPT_INDENT_2).decode())
    if arguments.only is None:
        figures["beside"] = list_personas(arguments.beside)
        judges = dict(one.split("=", 1) for one in arguments.judge)
        figures["round_trip"] = judge(plan, pairs, {name: Path(folder) for name, folder in judges.items()})
        synthetic, *others = list_conditions(arguments.pairs)
        seeds = {synthetic: arguments.trainings} | dict.fromkeys(others, arguments.comparisons)
        figures["trained"] = compare_with_base(plan, seeds)
        figures["encoders"] = add_encoder(plan, synthetic)
        print(markdown_table(TRAINED_COLUMNS, list_trained_rows(figures["trained"])))
        print("raw figures:", write_report(arguments.out, "synthesis-smollm2", figures), file=sys.stderr)


def describe(plan: Plan, pairs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of a finished synthesis: its report, counts of answers and pairs, cost, and example pairs."""
    report = orjson.loads((plan.pairs / "report.json").read_bytes())
    runs = orjson.loads((plan.work / "runs.json").read_bytes())
    answers = describe_answers(AnswerLog(plan.pairs / "answers"))
    for stage, one in answers.items():
        one |= {name: report["stages"][stage][name] for name in ("kept", "rejected")}
    seconds = sum(run["seconds"] for run in runs)
    cpu_seconds = sum(run.get("server_cpu_seconds", 0) for run in runs)
    tokens = report["tokens"]
    rows = [pairs[number * len(pairs) // EXAMPLES] for number in range(EXAMPLES)] if pairs else []
    return {
        "report": report,
        "answers": answers,
        "cost": {
            "minutes": seconds / 60,
            "answer_tokens_per_second": tokens["completion"] / seconds,
            "server_cpu_minutes": cpu_seconds / 60,
            "answer_tokens_per_cpu_second": tokens["completion"] / cpu_seconds if cpu_seconds else None,
        },
        "texts": describe_pairs(pairs, read_lines(plan.work / "seeds.jsonl"), plan.pairs / "templates"),
        "examples": [{name: row[name] for name in ("persona", "anchor", "positive")} for row in rows],
    }


def judge(plan: Plan, pairs: list[dict[str, Any]], folders: dict[str, Path]) -> dict[str, Any]:
    """Return the round-trip consistency of the pairs, and of as many real ones, by each judge.

    Every query searches the documents of the test and of all pairs. The result is stored in the work folder, and read
    from there if it exists.
    """
    stored = plan.work / "round_trip.json"
    if stored.exists():
        return dict(orjson.loads(stored.read_bytes()))
    real = read_lines(plan.work / "real-pairs.jsonl")[: len(pairs)]
    sets = {"synthetic": list_texts(pairs), "real": list_texts(real)}
    documents = list_document_texts(read_test(plan))
    documents += [document for some in sets.values() for _, document in some]
    documents = list(dict.fromkeys(documents))
    judges = open_judges(folders)
    found = {name: measure_round_trips(encoder, documents, sets) for name, encoder in judges.items()}
    stored.write_bytes(orjson.dumps(found))
    return found


def list_personas(folder: Path | None) -> list[str] | None:
    """Return every persona, usable or not, in the answers of another synthesis folder.

    The result is None without a folder.
    """
    if folder is None:
        return None
    records = [record for record in AnswerLog(folder / "answers") if record.stage == "personas"]
    return [text for record in records for text in record.items or [record.dropped[0][1]]]


def list_texts(rows: list[dict[str, Any]]) -> list[Pair]:
    """Return query and document of each row."""
    return [(row["anchor"], row["positive"]) for row in rows]


def list_stage_rows(answers: dict[str, Any]) -> list[list[str]]:
    """Return a row for each stage: its name and the cells of `STAGE_COLUMNS`.

    Args:
        answers: figures of `describe_answers` by stage, with the number of items that were `kept`.
    """
    return [
        [
            stage,
            str(one["calls"]),
            f"{one['usable_at_once']:.0%}",
            str(one["answered_calls"]),
            str(one["kept"]),
            ", ".join(f"{reason} {count}" for reason, count in one["faults"].items()) or "none",
        ]
        for stage, one in answers.items()
    ]


def list_trained_rows(trained: dict[str, Any]) -> list[list[str]]:
    """Return a row for each training, the untrained base first, with the cells of `TRAINED_COLUMNS`.

    Args:
        trained: what `compare_with_base` returns.
    """
    base = trained["base"]
    rows = [["nothing (base)", "", f"{base['value']:.1f} [{base['low']:.1f}, {base['high']:.1f}]", "", ""]]
    for name, one in trained["conditions"].items():
        differences = [one["less_base_over_queries"], one["less_base_over_seeds"]]
        rows.append([name, str(one["pairs"]), f"{one['score']:.1f}", *map(format_difference, differences)])
    return rows


def format_difference(one: dict[str, Any]) -> str:
    """Format a difference with its interval: "+0.4 [-0.1, +0.9]"."""
    bounds = "" if one["low"] is None else f" [{one['low']:+.1f}, {one['high']:+.1f}]"
    return f"{one['value']:+.1f}{bounds}"


if __name__ == "__main__":
    main()
