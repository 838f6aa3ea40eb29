"""What a run will take before it starts: calls, tokens, and with prices its cost.

Calls are those that are not answered yet, and after these at most as many as they can lead to: the filter, duplicates
and overlap leave fewer, attempts at better answers make some more. Tokens of answers are the mean of those on record,
where there are some, else a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from training.synthesis.book import Book
from training.synthesis.chat import guessed_tokens
from training.synthesis.job import PriceSettings, StageName, SynthesisJob
from training.synthesis.pipeline import Pipeline

ITEM_TOKENS: Mapping[StageName, int] = {"personas": 60, "queries": 30, "filter": 3, "documents": 350}
"""Of one item of an answer, about."""
MILLION = 1_000_000


@dataclass(frozen=True)
class Need:
    """What a stage will take.

    Attributes:
        stage: of the four.
        calls: at most.
        prompt_tokens: of these.
        completion_tokens: of their answers, expected.
        most_tokens: of their answers, if each is as long as it may be.
    """

    stage: StageName
    calls: int
    prompt_tokens: int
    completion_tokens: int
    most_tokens: int


@dataclass(frozen=True)
class Estimate:
    """What a run will take, stage by stage."""

    needs: Sequence[Need]
    prices: PriceSettings | None

    @property
    def calls(self) -> int:
        """All of them."""
        return sum(need.calls for need in self.needs)

    def cost(self, most: bool = False) -> float:
        """What it costs, expected or at most."""
        assert self.prices is not None
        answers = sum(need.most_tokens if most else need.completion_tokens for need in self.needs)
        prompts = sum(need.prompt_tokens for need in self.needs)
        return (prompts * self.prices.input + answers * self.prices.output) / MILLION

    def rows(self) -> list[tuple[str, ...]]:
        """As a table."""
        head = ("stage", "calls", "prompt tokens", "answer tokens", "at most")
        rows = [(n.stage, n.calls, n.prompt_tokens, n.completion_tokens, n.most_tokens) for n in self.needs]
        total = ("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True)))
        return [head, *((str(name), *(f"{number:,}" for number in numbers)) for name, *numbers in [*rows, total])]

    def sentences(self) -> list[str]:
        """What the table does not say."""
        said = ["Each stage leaves out some, so that the next take fewer calls; answers that cannot be used add some."]
        if self.prices is not None:
            expected, most, name = money(self.cost()), money(self.cost(most=True)), self.prices.currency
            said.append(f"Cost: about {expected} {name}, {most} {name} if every answer is as long as allowed.")
        return said


def estimate(pipeline: Pipeline, job: SynthesisJob, book: Book) -> Estimate:
    """What is left to do, by the answers so far."""
    needs, made = [], 0  # threads that answers of the stages before will add
    wanted: Mapping[StageName, int] = {"personas": job.personas, "queries": job.queries}
    texts = 0
    for stage, calls in pipeline.stages():
        open_calls = [call for call in calls if not book.is_settled(call.key, job.limits.attempts)]
        template = guessed_tokens(pipeline.prompts[stage].text)
        prompts = sum(guessed_tokens(call.prompt) for call in open_calls) + made * (template + texts)
        count = len(open_calls) + made
        limit = job.stages[stage].max_tokens
        answer = min(limit, mean_answer(stage, book) or ITEM_TOKENS[stage] * wanted.get(stage, 1))
        needs.append(Need(stage, count, prompts, round(count * answer), count * limit))
        made = count * wanted.get(stage, 1)
        texts = ITEM_TOKENS["queries" if stage == "filter" else stage]
    return Estimate(needs, job.prices)


def money(amount: float) -> str:
    """An amount, with more places where it is small."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"


def mean_answer(stage: StageName, book: Book) -> float | None:
    """Mean tokens of a stage's answers so far; None where there is none."""
    found = [record.completion_tokens for record in book if record.stage == stage]
    return sum(found) / len(found) if found else None
