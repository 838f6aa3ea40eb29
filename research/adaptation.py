"""The changes that `lathe adapt` tries on judged tasks: what each gains on queries set aside, how good its choices are.

    python -m research.adaptation --data FOLDER --encoders FOLDER --work FOLDER --out research/results

Tasks with a test split report on it, and everything is learned and chosen by queries of the training split. Tasks with
few queries are divided by the adaptation itself. Each result is stored in the work folder, so that a stopped run
goes on where it was.
"""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.codes.data import NamedEncoder, list_encoders
from benchmarks.report import markdown_table, write_report
from lathe.training.comparison import compare
from lathe.training.deciding.adapt import Adaptation, try_candidates
from lathe.training.deciding.adapt_report import describe_trial
from lathe.training.deciding.judged import JudgedSearches
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.deciding.trial import Trial, choose_trial
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.spec import StoreSettings, VectorStores
from lathe.training.fitting.requests import QueryPair, RowSource
from research.learned.data import Gains, Task, measure_once, read_task, task_parser

TUNING = ("code/mbpp", "code/spider_sql", "finance/fiqa_qa")
"""Tasks by which the settings of the training were chosen."""

PROOF = ("code/cosqa", "code/nl2bash", "finance/tatqa", "general/quora_pairs")
"""Tasks that are set aside, with training queries of their own."""

FEW = ("general/covid_faq", "general/trec_qa", "general/cranfield")
"""Tasks with few queries, of which an adaptation sets some aside itself."""

FOLDERS = {
    "code": ("code/stackoverflow_titles", "code/stackoverflow_clustering", "code/python_docs_api"),
    "finance": ("finance/banking77", "finance/ectsum", "finance/reuters_topics"),
    "general": ("general/ag_news", "general/mrpc", "general/stsb"),
}
"""Labelled data sets of each domain, for pre-finetuning."""

BYTES = 48
"""Bytes of a vector with codes."""

BUDGET = 400.0
"""Seconds for an adaptation on one core, after which no further training is begun."""


def build_request(task: Task, data: Path) -> AdaptRequest:
    """Return the request of an adaptation to a task, with its texts and the labelled folders of its domain."""
    train, test = (
        _list_pairs(task, queries, gains)
        for queries, gains in ((task.train, task.train_gains), (task.test, task.test_gains))
    )
    divided = task.name in FEW
    return AdaptRequest(
        source=RowSource(texts=task.documents),
        pairs=[*train, *test] if divided else train,
        test_pairs=None if divided else test,
        folders=[str(data / folder) for folder in FOLDERS[task.name.partition("/")[0]]],
        bytes=BYTES,
        budget=BUDGET,
    )


def _list_pairs(task: Task, queries: list[str], gains: Gains) -> list[QueryPair]:
    return [
        QueryPair(query=query, document=task.documents[row])
        for query, judged in zip(queries, gains, strict=True)
        for row, grade in judged.items()
        if grade > 0 and task.documents[row].strip()
    ]


def measure_task(name: str, encoder: NamedEncoder, data: Path, work: Path) -> dict[str, Any]:
    """Try the changes on a task, and return its trials and how its choices compare with the best changes."""
    task = read_task(data, name)
    stores = VectorStores(StoreSettings(work / "upstream"), StoreSettings(work / "encoded"))
    with try_candidates(
        build_request(task, data),
        open_encoder(encoder.spec, "cpu", stores),
        work / "workspace",
        lambda _fraction, message: print(f"{name}, {encoder.name}: {message}", file=sys.stderr),
        "cpu",
        stores,
    ) as result:
        return describe(result)


def describe(result: Adaptation) -> dict[str, Any]:
    """Return an adaptation as JSON: the choices among floats and codes, each compared with the best trial.

    The best trial is the best one on the set-aside queries.
    """
    searches = result.searches
    described: dict[str, Any] = {
        "queries": searches.count_queries(),
        "documents": len(searches.documents),
        "characters": round(sum(map(len, searches.documents)) / len(searches.documents)),
        "shortage": result.shortage,
        "seconds_per_document": max(trial.encode_seconds for trial in result.trials) / searches.rows,
    }
    if result.shortage:
        return described
    trials = {"floats": result.floats, "codes": result.rivals}
    return described | {
        "trials": [describe_trial(trial, result) for trial in result.trials],
        "choices": {form: compare_choice(trials[form], searches) for form in trials},
    }


def compare_choice(trials: list[Trial], searches: JudgedSearches) -> dict[str, Any]:
    """Compare the chosen change with the best one on the set-aside queries."""
    chosen = choose_trial(trials, searches.choose)
    tried = [trial for trial in trials if trial.scores is not None]
    best = max(tried, key=lambda trial: float(trial.scores_of(searches.report).mean()))
    behind = compare(best.scores_of(searches.report), chosen.scores_of(searches.report))
    return {
        "chosen": chosen.candidate.name,
        "best": best.candidate.name,
        "behind": {"gain": behind.value, "ci95": behind.reach},
        "within": behind.sign <= 0,
    }


def main() -> None:
    """Measure, print tables, write the raw figures."""
    options = task_parser(__doc__)
    arguments = options.parse_args()
    torch.set_num_threads(1)
    encoders = list_encoders(arguments.encoders, arguments.encoder or ["MiniLM", "e5-small", "WordLlama"])
    tasks = ("code/mbpp",) if arguments.quick else arguments.task or (*PROOF, *TUNING, *FEW)
    figures: dict[str, Any] = {"tuning": TUNING, "bytes": BYTES, "budget_seconds": BUDGET, "folders": FOLDERS}
    figures["encoders"] = {}
    for encoder in encoders:
        found: dict[str, Any] = {}
        for task in tasks:
            path = arguments.work / f"adaptation-{encoder.name}-{task.replace('/', '-')}.json"
            measure = partial(measure_task, task, encoder, arguments.data, arguments.work)
            if (figure := measure_once(path, measure, arguments.measured)) is not None:
                found[task] = figure
        figures["encoders"][encoder.name] = found
        print(f"\n## {encoder.name}\n\n{format_table(found)}")
    print("raw figures:", write_report(arguments.out, "adaptation", figures), file=sys.stderr)


CHANGE_COLUMNS = ("debias", "query_adapter", "fine_tuning", "pre_finetuning")
"""Rungs with a column of their own."""


def format_table(found: dict[str, Any]) -> str:
    """Format the gains of each change on the set-aside queries of each task, in points of nDCG@10, as a table."""
    header = ["task", "queries", "as is", *CHANGE_COLUMNS, "chosen", "chosen, 48 bytes"]
    rows = [[task, *_format_row(figure)] for task, figure in found.items()]
    return markdown_table(header, rows)


def _format_row(figure: dict[str, Any]) -> list[str]:
    counts = " / ".join(str(figure["queries"][part]) for part in ("learn", "choose", "report"))
    if "trials" not in figure:
        return [counts, *["–"] * (len(CHANGE_COLUMNS) + 1), "as_is", "–"]
    floats = {trial["change"]: trial for trial in figure["trials"] if trial["bytes"] is None}
    codes = {trial["change"]: trial for trial in figure["trials"] if trial["bytes"] is not None}
    chosen = figure["choices"]["codes"]["chosen"]
    return [
        counts,
        f"{100 * floats['as_is']['report']['ndcg_at_10']:.1f}",
        *(_format_gain(floats[change]) for change in CHANGE_COLUMNS),
        figure["choices"]["floats"]["chosen"],
        f"{chosen}: {_format_gain(codes[chosen])}",
    ]


def _format_gain(trial: dict[str, Any]) -> str:
    if trial["problem"]:
        return "–"
    return f"{100 * trial['report']['gain']:+.1f} ± {100 * (trial['report']['ci95'] or 0):.1f}"


if __name__ == "__main__":
    main()
