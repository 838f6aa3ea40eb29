"""What is to be asked next, and the pairs that come of it.

seeds ─ personas ─ queries ─ filter ─ documents ─ pairs
  │                   │         │         │
  known to tests   alike,    take no   alike,
                   known     document  known

Everything follows from the book: a run that was stopped comes to the same calls again, finds them answered, and goes
on. The filter keeps queries that take documents to answer, as FinMTEB's Section 4.2 does: the others teach no search.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from training.finetuning.overlap import normalized
from training.synthesis.book import Book
from training.synthesis.held_out import HeldOut
from training.synthesis.job import STAGES, StageName, SynthesisJob
from training.synthesis.near import NearTexts
from training.synthesis.seeds import Seed
from training.synthesis.stages import Call
from training.synthesis.templates import Prompt

DISTINCT: tuple[StageName, ...] = ("queries", "documents")
"""Stages whose texts are trained on: they must differ, and be none that a test set knows."""
NO_DOCUMENT = "takes no document"


@dataclass(frozen=True)
class Thread:
    """What has come of a seed so far; a pair in the end.

    Attributes:
        seed: where it begins.
        persona: who asks, at what task.
        query: what they ask.
        document: what answers it.
        keys: of the calls that made these.
    """

    seed: Seed
    persona: str = ""
    query: str = ""
    document: str = ""
    keys: tuple[str, ...] = ()

    def grown(self, stage: StageName, item: str, key: str) -> "Thread":
        """With what an answer adds; the filter's adds nothing."""
        keys = (*self.keys, key)
        if stage == "personas":
            return replace(self, persona=item, keys=keys)
        if stage == "queries":
            return replace(self, query=item, keys=keys)
        return replace(self, document=item if stage == "documents" else "", keys=keys)

    def new_texts(self, stage: str) -> tuple[str, ...]:
        """What a stage brought that must be known to no test set."""
        texts = {"seeds": (self.seed.question, self.seed.answer), "queries": (self.query,)}
        return texts.get(stage, (self.document,))

    def values(self, count: int) -> dict[str, object]:
        """What a template may mention."""
        seed = {name: getattr(self.seed, name) for name in ("question", "answer", "context")}
        return seed | {"persona": self.persona, "query": self.query, "count": count}


@dataclass(frozen=True)
class Rejected:
    """What was left out.

    Attributes:
        stage: where; `seeds` before anything is asked.
        reason: in words that can be counted.
        text: what was left out.
        seed: where it comes from.
        details: more to say.
    """

    stage: str
    reason: str
    text: str
    seed: Seed
    details: dict[str, Any] = field(default_factory=dict)


class Pipeline:
    """From seeds to pairs.

    Args:
        job: the settings.
        prompts: of each stage.
        seeds: what it starts from.
        held_out: what must not come out.
        book: the answers so far.
    """

    def __init__(
        self,
        job: SynthesisJob,
        prompts: Mapping[StageName, Prompt],
        seeds: Sequence[Seed],
        held_out: HeldOut,
        book: Book,
    ) -> None:
        self.job, self.prompts, self.seeds, self.held_out, self.book = job, prompts, seeds, held_out, book
        self.calls: dict[StageName, list[Call]] = {}
        self.kept: Counter[str] = Counter()
        self.rejected: list[Rejected] = []
        self.pairs: list[Thread] = []

    def stages(self) -> Iterator[tuple[StageName, list[Call]]]:
        """The calls of each stage in turn; whoever takes them has asked them before taking the next."""
        threads = self.unknown("seeds", [Thread(seed) for seed in self.seeds])
        self.kept["seeds"] = len(threads)
        for stage in STAGES:
            calls = [self.call(stage, thread) for thread in threads]
            self.calls[stage] = list({call.key: call for call in calls}.values())
            yield stage, self.calls[stage]
            threads = list(self.answered(stage, threads, calls))
            if stage in DISTINCT:
                threads = self.unknown(stage, self.distinct(stage, threads))
            self.kept[stage] = len(threads)
        self.pairs = threads

    def call(self, stage: StageName, thread: Thread) -> Call:
        """What is asked of a thread."""
        count = {"personas": self.job.personas, "queries": self.job.queries}.get(stage, 1)
        prompt = self.prompts[stage]
        return Call(
            stage=stage,
            prompt=prompt.fill(**thread.values(count)),
            model=self.job.model_of(stage),
            parameters=self.job.parameters_of(stage),
            template=prompt.hash,
            seed=thread.seed.key,
            count=count,
            sample=thread.seed.text,
        )

    def answered(self, stage: StageName, threads: Sequence[Thread], calls: Sequence[Call]) -> Iterator[Thread]:
        """The threads that the answers make of these; what is not answered yet makes none."""
        for thread, call in zip(threads, calls, strict=True):
            record = self.book.good(call.key)
            attempts = self.book.attempts(call.key)
            if record is None and len(attempts) >= self.job.limits.attempts:
                reason, text = attempts[-1].dropped[0]
                self.reject(stage, reason, text, thread, attempts=len(attempts))
            if record is None:
                continue
            for reason, text in record.dropped:
                self.reject(stage, reason, text, thread)
            for item in record.items:
                if stage == "filter" and item == "no":
                    self.reject(stage, NO_DOCUMENT, thread.query, thread)
                else:
                    yield thread.grown(stage, item, call.key)

    def distinct(self, stage: StageName, threads: Sequence[Thread]) -> list[Thread]:
        """Threads whose new text is not another's, the first of those that are alike."""
        known, kept = NearTexts(self.job.similarity), []
        for thread in threads:
            (text,) = thread.new_texts(stage)
            near = known.closest(text)
            if near is None:
                known.add(text)
                kept.append(thread)
            else:
                reason = "duplicate" if normalized(near[0]) == normalized(text) else "near duplicate"
                self.reject(stage, reason, text, thread, of=near[0], similarity=round(near[1], 3))
        return kept

    def unknown(self, stage: str, threads: Sequence[Thread]) -> list[Thread]:
        """Threads none of whose new texts a test set knows."""
        texts = [(place, text) for place, thread in enumerate(threads) for text in thread.new_texts(stage)]
        matches = self.held_out.matches([text for _, text in texts])
        known: dict[int, int] = {}
        for index in sorted(matches, reverse=True):
            known[texts[index][0]] = index
        for place, index in sorted(known.items()):
            match = matches[index]
            details = {"test_set": match.test_set, "how": match.how, "theirs": match.theirs}
            self.reject(stage, "known to a test set", texts[index][1], threads[place], **details)
        return [thread for place, thread in enumerate(threads) if place not in known]

    def reject(self, stage: str, reason: str, text: str, thread: Thread, **details: Any) -> None:
        """Leave something out, with its reason."""
        self.rejected.append(Rejected(stage, reason, text, thread.seed, details))
