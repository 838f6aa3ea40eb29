"""A synthesis written down: pairs, what was left out and why, figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from training.digests import digest
from training.synthesis.asking import Asker
from training.synthesis.book import Book
from training.synthesis.endpoint import Endpoint
from training.synthesis.estimate import MILLION, money
from training.synthesis.job import STAGES, StageName, SynthesisJob
from training.synthesis.pipeline import Pipeline, Thread
from transforms.files import replace_synced

PAIRS, REJECTED, REPORT = "pairs.jsonl", "rejected.jsonl", "report.json"


@dataclass(frozen=True)
class Outcome:
    """A run that ended, whether all is answered or not."""

    job: SynthesisJob
    pipeline: Pipeline
    book: Book
    asker: Asker
    endpoint: Endpoint
    seconds: float

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.asker.spent is None and self.asker.error is None and not self.asker.unanswered


def write(outcome: Outcome, out: Path) -> None:
    """Write the three files."""
    replace_synced(out / PAIRS, lines(pair_row(pair, outcome) for pair in outcome.pipeline.pairs))
    replace_synced(out / REJECTED, lines(rejected_rows(outcome)))
    replace_synced(out / REPORT, orjson.dumps(as_json(outcome), option=orjson.OPT_INDENT_2))


def lines(rows: Iterable[dict[str, Any]]) -> bytes:
    """JSON lines."""
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)


def pair_row(pair: Thread, outcome: Outcome) -> dict[str, Any]:
    """A pair as the sources of a training read it, with where it comes from."""
    good = {stage: outcome.book.good(key) for stage, key in zip(STAGES, pair.keys, strict=True)}
    return {
        "anchor": pair.query,
        "positive": pair.document,
        "id": digest(pair.query, pair.document)[:16],
        "persona": pair.persona,
        "seed": pair.seed.key,
        "seed_place": pair.seed.place,
        "provenance": {stage: record.provenance() for stage, record in good.items() if record},
    }


def rejected_rows(outcome: Outcome) -> Iterable[dict[str, Any]]:
    """What was left out, by stage and seed, and what nobody answered."""
    for one in outcome.pipeline.rejected:
        row = {"stage": one.stage, "reason": one.reason, "text": one.text, "seed": one.seed.key}
        yield row | {"seed_place": one.seed.place} | one.details
    for call, message in outcome.asker.unanswered.values():
        yield {"stage": call.stage, "reason": "not answered", "text": call.prompt, "seed": call.seed, "error": message}


def as_json(outcome: Outcome) -> dict[str, Any]:
    """The figures."""
    job, asker = outcome.job, outcome.asker
    prompt_tokens = sum(record.prompt_tokens for record in outcome.book)
    completion_tokens = sum(record.completion_tokens for record in outcome.book)
    found: dict[str, Any] = {
        "complete": outcome.is_complete,
        "stopped": asker.spent,
        "pairs": len(outcome.pipeline.pairs),
        "seeds": {
            "read": len(outcome.pipeline.seeds),
            "kept": outcome.pipeline.kept["seeds"],
            "rejected": reasons(outcome, "seeds"),
        },
        "stages": {stage: stage_figures(outcome, stage) for stage in STAGES},
        "tokens": {
            "prompt": prompt_tokens,
            "completion": completion_tokens,
            "counted_by_endpoint": all(record.counted for record in outcome.book),
        },
        "this_run": {
            "requests": asker.sent,
            "failures": dict(asker.failures),
            "unanswered": len(asker.unanswered),
            "seconds": round(outcome.seconds, 1),
        },
        "test_sets": outcome.pipeline.held_out.counts,
        "similarity": job.similarity,
        "shared_words": job.shared_words,
        "endpoint": outcome.endpoint.host,
        "lathe": version("lathe"),
        "date": datetime.now(UTC).date().isoformat(),
    }
    if job.prices is not None:
        cost = (prompt_tokens * job.prices.input + completion_tokens * job.prices.output) / MILLION
        found["cost"] = {"amount": round(cost, 6), "currency": job.prices.currency}
    return found


def stage_figures(outcome: Outcome, stage: StageName) -> dict[str, Any]:
    """What became of a stage's calls."""
    records = [record for record in outcome.book if record.stage == stage]
    calls = outcome.pipeline.calls[stage]
    attempts = outcome.job.limits.attempts
    return {
        "model": outcome.job.model_of(stage),
        "template": outcome.pipeline.prompts[stage].hash,
        "calls": len(calls),
        "settled": sum(outcome.book.is_settled(call.key, attempts) for call in calls),
        "answers": len(records),
        "asked_again": dict(Counter(record.dropped[0][0] for record in records if not record.items)),
        "kept": outcome.pipeline.kept[stage],
        "rejected": reasons(outcome, stage),
        "prompt_tokens": sum(record.prompt_tokens for record in records),
        "completion_tokens": sum(record.completion_tokens for record in records),
    }


def reasons(outcome: Outcome, stage: str) -> dict[str, int]:
    """How often what was the reason, the most frequent first."""
    return dict(Counter(one.reason for one in outcome.pipeline.rejected if one.stage == stage).most_common())


def rows(found: dict[str, Any]) -> list[tuple[str, ...]]:
    """The stages as a table."""
    table: list[tuple[str, ...]] = [("stage", "calls", "answers", "kept", "left out", "answers that could not be used")]
    seeds = found["seeds"]
    table.append(("seeds", "", "", f"{seeds['kept']:,}", counted(seeds["rejected"]), ""))
    for stage, figures in found["stages"].items():
        numbers = (f"{figures[name]:,}" for name in ("calls", "answers", "kept"))
        table.append((stage, *numbers, counted(figures["rejected"]), counted(figures["asked_again"])))
    return table


def counted(found: dict[str, int]) -> str:
    """Reasons with their counts."""
    return ", ".join(f"{reason} {count:,}" for reason, count in found.items()) or "none"


def sentences(found: dict[str, Any]) -> list[str]:
    """What the table does not say."""
    run, tokens = found["this_run"], found["tokens"]
    said = [
        f"{run['requests']:,} requests in {run['seconds']:,.0f} s"
        + (f"; failed: {counted(run['failures'])}" if run["failures"] else "")
    ]
    guessed = "" if tokens["counted_by_endpoint"] else ", guessed by length where the endpoint does not count"
    cost = f", {money(found['cost']['amount'])} {found['cost']['currency']}" if "cost" in found else ""
    said.append(f"{tokens['prompt']:,} tokens asked, {tokens['completion']:,} answered in all runs{guessed}{cost}")
    if found["stopped"]:
        said.append(f"Stopped: {found['stopped']}. With a larger one the same command goes on from there.")
    if run["unanswered"]:
        said.append(f"{run['unanswered']:,} calls were not answered; the same command asks them again.")
    return said
