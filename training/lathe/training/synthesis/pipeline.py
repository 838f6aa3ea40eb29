"""Seeds, the calls of every stage, and the pairs that follow from the answers.

seeds ─ personas ─ queries ─ filter ─ documents ─ pairs
  │                   │         │         │
  match a test set    │      need no   near duplicates,
                      │      document  match a test set
           near duplicates,
           match a test set

Everything is derived from the answer log: a resumed run builds the same calls, takes the answers that are in the log,
and sends the other calls. The filter keeps queries that need documents to be answered, as in FinMTEB's Section 4.2:
other queries do not teach retrieval. A job may leave the filter out; then there are no calls, and every query is kept.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lathe.training.datasets.records import Record, format_places, normalize_text, read_file_records, shorten_value
from lathe.training.errors import JobError
from lathe.training.synthesis.answer_log import AnswerLog
from lathe.training.synthesis.answer_parsing import Call
from lathe.training.synthesis.held_out import HeldOutIndex
from lathe.training.synthesis.job import STAGES, SeedSettings, StageName, SynthesisJob
from lathe.training.synthesis.near_duplicates import NearDuplicates
from lathe.training.synthesis.templates import Prompt
from lathe.training.workspace import digest


@dataclass(frozen=True)
class Seed:
    """A question with an answer, from which personas and queries are generated.

    Attributes:
        place: row that the seed comes from, for messages.
        question: the question.
        answer: the answer.
        context: context of the question; "" without context.
    """

    place: str
    question: str
    answer: str
    context: str = ""

    @property
    def key(self) -> str:
        """Digest of question, answer and context, as 16 hexadecimal digits."""
        return digest(self.question, self.answer, self.context)[:16]

    @property
    def text(self) -> str:
        """Question, answer and context (if there is one), joined by newlines."""
        return "\n".join(filter(None, (self.question, self.answer, self.context)))


def read_seeds(settings: SeedSettings) -> list[Seed]:
    """Read distinct questions with answers from JSON lines. Raise `JobError` if a row lacks question or answer.

    The seeds are in the order of the file. A context is optional.

    Raises:
        JobError: if the file is missing or has no rows, a row lacks a question or an answer, or one of the fields is
            not a string.
        DataSetError: if the file cannot be read or is not JSON lines.
    """
    name = settings.jsonl.name
    if not settings.jsonl.is_file():
        raise JobError(f"there is no file {settings.jsonl}")

    distinct: dict[str, Seed] = {}
    lacking: dict[str, list[str]] = {"question": [], "answer": []}
    for record in read_file_records(settings.jsonl):
        texts = {part: _read_text_field(record, getattr(settings, part)) for part in ("question", "answer", "context")}
        missing = next((part for part in lacking if not texts[part]), None)
        if missing:
            lacking[missing].append(record.place)
        else:
            seed = Seed(record.place, **texts)
            distinct.setdefault(seed.key, seed)

    for part, places in lacking.items():
        if places:
            field = getattr(settings, part)
            raise JobError(
                f"no {field!r} at {format_places(places)}: every seed needs a question and an answer; "
                f"seeds.{part} names the field"
            )

    if not distinct:
        raise JobError(f"{name} has no rows: a synthesis needs at least one question with an answer")

    return list(distinct.values())


def _read_text_field(record: Record, field: str) -> str:
    """Return the stripped text in a field of a row, or "" if missing or null. A value of another type raises.

    Raises:
        JobError: if the field is not a string.
    """
    value: Any = record.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise JobError(f"{record.place}: {field!r} must be a string, not {shorten_value(value)}")
    return value.strip()


DISTINCT: tuple[StageName, ...] = ("queries", "documents")
"""Stages whose texts are trained on. These texts must be distinct and match no test set."""
NO_DOCUMENT = "takes no document"
"""Reason for which the filter rejects a query."""


@dataclass(frozen=True)
class PairDraft:
    """A pair under construction: a seed with the texts of the stages so far.

    Attributes:
        seed: the seed.
        persona: who asks, and for what task; "" before the stage `personas`.
        query: the question; "" before the stage `queries`.
        document: passage that answers the query; "" before the stage `documents`.
        keys: keys of the calls so far, in the order of the stages; "" for a stage that is left out.
    """

    seed: Seed
    persona: str = ""
    query: str = ""
    document: str = ""
    keys: tuple[str, ...] = ()

    def with_item(self, stage: StageName, item: str, key: str) -> "PairDraft":
        """Return a copy of the draft with the item of a stage's answer as its text, and with the key of the call.

        In the stage `filter`, only the key is added.
        """
        keys = (*self.keys, key)
        if stage == "personas":
            return replace(self, persona=item, keys=keys)
        if stage == "queries":
            return replace(self, query=item, keys=keys)
        return replace(self, document=item if stage == "documents" else "", keys=keys)

    def new_texts(self, stage: str) -> tuple[str, ...]:
        """Return the texts that a stage added: question and answer for `seeds`, the query for `queries`.

        For other stages, it is the document.
        """
        texts = {"seeds": (self.seed.question, self.seed.answer), "queries": (self.query,)}
        return texts.get(stage, (self.document,))

    def template_values(self, count: int) -> dict[str, object]:
        """Return the values of all placeholders that a prompt template may use, by name.

        `count` is the number of items that the prompt asks for.
        """
        seed = {name: getattr(self.seed, name) for name in ("question", "answer", "context")}
        return seed | {"persona": self.persona, "query": self.query, "count": count}


@dataclass(frozen=True)
class _RejectedText:
    """A text that a stage rejected, and the reason.

    Attributes:
        stage: stage that rejected the text; `seeds` for seeds.
        reason: short reason, by which rejections are counted.
        text: the text.
        seed: seed that the text comes from.
        details: further facts, such as the matching test text.
    """

    stage: str
    reason: str
    text: str
    seed: Seed
    details: dict[str, Any] = field(default_factory=dict)


class Pipeline:
    """The stages of a synthesis, which derive calls to the model and pairs from seeds and logged answers.

    Args:
        job: settings of the job.
        prompts: prompt template by stage.
        seeds: questions with answers to start from.
        held_out: index of the test texts that must not occur.
        log: answer log.

    Attributes:
        calls: distinct calls by stage, for the stages so far.
        kept: number of drafts that were kept, by stage and for `seeds`.
        rejected: texts that were rejected so far.
        pairs: finished pairs; empty until the last stage is finished.
    """

    def __init__(
        self,
        job: SynthesisJob,
        prompts: Mapping[StageName, Prompt],
        seeds: Sequence[Seed],
        held_out: HeldOutIndex,
        log: AnswerLog,
    ) -> None:
        self.job, self.prompts, self.seeds, self.held_out, self.log = job, prompts, seeds, held_out, log
        self.calls: dict[StageName, list[Call]] = {}
        self.kept: Counter[str] = Counter()
        self.rejected: list[_RejectedText] = []
        self.pairs: list[PairDraft] = []

    def stages(self) -> Iterator[tuple[StageName, list[Call]]]:
        """Yield every stage with the calls that it needs, whose answers the caller logs. Build `pairs` at the end.

        Iterating fills `calls`, `kept`, `rejected` and finally `pairs`. Rejected are seeds, queries and documents that
        match a test set, and queries and documents that nearly duplicate an earlier text.
        """
        drafts = self._reject_known("seeds", [PairDraft(seed) for seed in self.seeds])
        self.kept["seeds"] = len(drafts)
        for stage in STAGES:
            calls = [self._build_call(stage, draft) for draft in drafts] if self.job.asks(stage) else []
            # Drafts with equal prompts share one call.
            self.calls[stage] = list({call.key: call for call in calls}.values())
            yield stage, self.calls[stage]

            if self.job.asks(stage):
                drafts = list(self._advance(stage, drafts, calls))
            else:
                drafts = [draft.with_item(stage, "", "") for draft in drafts]

            if stage in DISTINCT:
                drafts = self._reject_known(stage, self._reject_duplicates(stage, drafts))

            self.kept[stage] = len(drafts)

        self.pairs = drafts

    def _build_call(self, stage: StageName, draft: PairDraft) -> Call:
        count = {"personas": self.job.personas, "queries": self.job.queries}.get(stage, 1)
        prompt = self.prompts[stage]
        return Call(
            stage=stage,
            prompt=prompt.fill(**draft.template_values(count)),
            model=self.job.model_of(stage),
            parameters=self.job.parameters_of(stage),
            template=prompt.hash,
            seed=draft.seed.key,
            count=count,
            sample=draft.seed.text,
        )

    def _advance(self, stage: StageName, drafts: Sequence[PairDraft], calls: Sequence[Call]) -> Iterator[PairDraft]:
        """Yield a draft for every usable item of the logged answers to a stage's calls. Reject unusable items.

        Unusable items, and queries that the filter rejects, are added to `rejected`. For a call without a usable answer
        no draft is yielded, and once its attempts are exhausted, the last answer is added to `rejected`.
        """
        for draft, call in zip(drafts, calls, strict=True):
            answer = self.log.find_usable(call.key)
            attempts = self.log.list_answers(call.key)
            if answer is None and len(attempts) >= self.job.limits.attempts:
                # The last attempt stands for all attempts, which were all unusable.
                reason, text = attempts[-1].dropped[0]
                self._reject(stage, reason, text, draft, attempts=len(attempts))

            if answer is None:
                continue

            for reason, text in answer.dropped:
                self._reject(stage, reason, text, draft)

            for item in answer.items:
                if stage == "filter" and item == "no":
                    self._reject(stage, NO_DOCUMENT, draft.query, draft)
                else:
                    yield draft.with_item(stage, item, call.key)

    def _reject_duplicates(self, stage: StageName, drafts: Sequence[PairDraft]) -> list[PairDraft]:
        """Return the drafts whose new text does not nearly duplicate an earlier text. Add the others to `rejected`."""
        index, distinct = NearDuplicates(self.job.similarity), []
        for draft in drafts:
            (text,) = draft.new_texts(stage)
            closest = index.find_closest(text)
            if closest is None:
                index.add(text)
                distinct.append(draft)
            else:
                reason = "duplicate" if normalize_text(closest[0]) == normalize_text(text) else "near duplicate"
                self._reject(stage, reason, text, draft, of=closest[0], similarity=round(closest[1], 3))

        return distinct

    def _reject_known(self, stage: str, drafts: Sequence[PairDraft]) -> list[PairDraft]:
        """Return the drafts whose new texts match no text of a test set. Add the other drafts to `rejected`."""
        texts = [(position, text) for position, draft in enumerate(drafts) for text in draft.new_texts(stage)]
        matches = self.held_out.find_matches([text for _, text in texts])
        first_matches: dict[int, int] = {}

        # In reverse, so that a draft with several matching texts is rejected for the first matching text.
        for index in sorted(matches, reverse=True):
            first_matches[texts[index][0]] = index

        for position, index in sorted(first_matches.items()):
            match = matches[index]
            details = {"test_set": match.test_set, "how": match.how, "theirs": match.test_text}
            self._reject(stage, "known to a test set", texts[index][1], drafts[position], **details)

        return [draft for position, draft in enumerate(drafts) if position not in first_matches]

    def _reject(self, stage: str, reason: str, text: str, draft: PairDraft, **details: Any) -> None:
        self.rejected.append(_RejectedText(stage, reason, text, draft.seed, details))
