"""Result files of a synthesis: pairs, rejected texts with reasons, and a report with statistics."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from lathe.training.journal import serialize_lines
from lathe.training.reporting.page import render_sentences
from lathe.training.synthesis.answer_log import AnswerLog
from lathe.training.synthesis.chat import Endpoint
from lathe.training.synthesis.job import STAGES, StageName, SynthesisJob
from lathe.training.synthesis.pipeline import PairDraft, Pipeline
from lathe.training.synthesis.sender import Sender
from lathe.training.workspace import digest
from lathe.transforms.files import replace_synced

PAIRS, REJECTED, REPORT = "pairs.jsonl", "rejected.jsonl", "report.json"
"""Names of the result files."""
TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences about a run."""
MILLION = 1_000_000
"""Number of tokens that a price is for."""


@dataclass(frozen=True)
class SynthesisOutcome:
    """Result of a run that has ended, with or without answers to all calls.

    Attributes:
        job: settings of the job.
        pipeline: pipeline, with pairs and rejected texts.
        log: answer log.
        sender: sender, with failures and the reason for a stop.
        endpoint: the endpoint.
        seconds: duration of the run.
    """

    job: SynthesisJob
    pipeline: Pipeline
    log: AnswerLog
    sender: Sender
    endpoint: Endpoint
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether the run ended without an exhausted budget, without an error, and without unanswered calls."""
        return self.sender.spent is None and self.sender.error is None and not self.sender.unanswered


def write_outcome(outcome: SynthesisOutcome, out: Path) -> None:
    """Write the pairs, the rejected texts and the report of a run to a folder.

    The files are pairs.jsonl, rejected.jsonl and report.json. Existing files are replaced.
    """
    replace_synced(out / PAIRS, serialize_lines(_build_pair_row(pair, outcome) for pair in outcome.pipeline.pairs))
    replace_synced(out / REJECTED, serialize_lines(_list_rejected_rows(outcome)))
    replace_synced(out / REPORT, orjson.dumps(build_report(outcome), option=orjson.OPT_INDENT_2))


def _build_pair_row(pair: PairDraft, outcome: SynthesisOutcome) -> dict[str, Any]:
    """Build the JSON object of a pair with texts and provenance, which `lathe train` can read as a row of a source."""
    answers = {stage: outcome.log.find_usable(key) for stage, key in zip(STAGES, pair.keys, strict=True)}
    return {
        "anchor": pair.query,
        "positive": pair.document,
        "id": digest(pair.query, pair.document)[:16],
        "persona": pair.persona,
        "seed": pair.seed.key,
        "seed_place": pair.seed.place,
        "provenance": {stage: answer.build_provenance() for stage, answer in answers.items() if answer},
    }


def _list_rejected_rows(outcome: SynthesisOutcome) -> Iterable[dict[str, Any]]:
    for rejected in outcome.pipeline.rejected:
        row = {"stage": rejected.stage, "reason": rejected.reason, "text": rejected.text, "seed": rejected.seed.key}
        yield row | {"seed_place": rejected.seed.place} | rejected.details
    for call, message in outcome.sender.unanswered.values():
        yield {"stage": call.stage, "reason": "not answered", "text": call.prompt, "seed": call.seed, "error": message}


def build_report(outcome: SynthesisOutcome) -> dict[str, Any]:
    """Build the contents of report.json: completeness, pairs, stages, tokens, cost, test sets and settings.

    The cost is missing if the job has no prices. Tokens and cost count all runs in the folder. Requests, failures and
    seconds count this run.
    """
    job, sender = outcome.job, outcome.sender
    prompt_tokens = sum(answer.prompt_tokens for answer in outcome.log)
    completion_tokens = sum(answer.completion_tokens for answer in outcome.log)
    contents: dict[str, Any] = {
        "complete": outcome.is_complete,
        "stopped": sender.spent,
        "pairs": len(outcome.pipeline.pairs),
        "seeds": {
            "read": len(outcome.pipeline.seeds),
            "kept": outcome.pipeline.kept["seeds"],
            "rejected": _count_reasons(outcome, "seeds"),
        },
        "stages": {stage: _compute_stage_figures(outcome, stage) for stage in STAGES},
        "tokens": {
            "prompt": prompt_tokens,
            "completion": completion_tokens,
            "counted_by_endpoint": all(answer.counted for answer in outcome.log),
        },
        "this_run": {
            "requests": sender.sent,
            "failures": dict(sender.failures),
            "unanswered": len(sender.unanswered),
            "seconds": round(outcome.seconds, 1),
        },
        "test_sets": outcome.pipeline.held_out.counts,
        "similarity": job.similarity,
        "shared_words": job.shared_words,
        "endpoint": outcome.endpoint.host,
        "lathe": version("lathe-training"),
        "date": datetime.now(UTC).date().isoformat(),
    }

    if job.prices is not None:
        cost = (prompt_tokens * job.prices.input + completion_tokens * job.prices.output) / MILLION
        contents["cost"] = {"amount": round(cost, 6), "currency": job.prices.currency}

    return contents


def _compute_stage_figures(outcome: SynthesisOutcome, stage: StageName) -> dict[str, Any]:
    answers = [answer for answer in outcome.log if answer.stage == stage]
    calls = outcome.pipeline.calls[stage]
    attempts = outcome.job.limits.attempts

    return {
        "model": outcome.job.model_of(stage),
        "template": outcome.pipeline.prompts[stage].hash,
        "calls": len(calls),
        "settled": sum(outcome.log.is_settled(call.key, attempts) for call in calls),
        "answers": len(answers),
        "asked_again": dict(Counter(answer.dropped[0][0] for answer in answers if not answer.items)),
        "kept": outcome.pipeline.kept[stage],
        "rejected": _count_reasons(outcome, stage),
        "prompt_tokens": sum(answer.prompt_tokens for answer in answers),
        "completion_tokens": sum(answer.completion_tokens for answer in answers),
    }


def _count_reasons(outcome: SynthesisOutcome, stage: str) -> dict[str, int]:
    return dict(
        Counter(rejected.reason for rejected in outcome.pipeline.rejected if rejected.stage == stage).most_common()
    )


def build_stage_rows(report: dict[str, Any]) -> list[tuple[str, ...]]:
    """Build a table of seeds and stages from the contents of report.json, as rows of strings with the header first.

    Columns are stage, calls, answers, kept texts, texts left out by reason, and unusable answers by reason.
    """
    table: list[tuple[str, ...]] = [("stage", "calls", "answers", "kept", "left out", "answers that could not be used")]
    seeds = report["seeds"]
    table.append(("seeds", "", "", f"{seeds['kept']:,}", _format_counts(seeds["rejected"]), ""))
    for stage, figures in report["stages"].items():
        numbers = (f"{figures[name]:,}" for name in ("calls", "answers", "kept"))
        table.append((stage, *numbers, _format_counts(figures["rejected"]), _format_counts(figures["asked_again"])))
    return table


def _format_counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items()) or "none"


def format_amount(amount: float) -> str:
    """Format an amount of money with 2 decimals, or with 4 decimals if it is less than 1."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"


def summarize_run(report: dict[str, Any]) -> list[str]:
    """Summarize the contents of report.json in sentences.

    The sentences are about requests, failures, tokens, cost, unanswered calls, and why the run stopped.
    """
    return render_sentences(TEMPLATE, report | {"format_counts": _format_counts, "format_amount": format_amount})
