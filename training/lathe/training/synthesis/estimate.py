"""Estimate of what a run takes, before it starts: calls, tokens and, with prices, cost.

Counted are the calls not answered yet, and after these at most as many as they can lead to: the filter, duplicates and
overlap leave fewer, attempts at better answers add some. The tokens of an answer are the mean of the stage's logged
answers, if there are any, else a guess.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lathe.training.synthesis.answer_log import AnswerLog
from lathe.training.synthesis.chat import estimate_tokens
from lathe.training.synthesis.job import PriceSettings, StageName, SynthesisJob
from lathe.training.synthesis.pipeline import Pipeline

ITEM_TOKENS: Mapping[StageName, int] = {"personas": 60, "queries": 30, "filter": 3, "documents": 350}
"""Approximate tokens of one item of an answer, by stage."""
MILLION = 1_000_000


@dataclass(frozen=True)
class StageEstimate:
    """Estimate of one stage.

    Attributes:
        stage: the stage.
        calls: maximum number of calls.
        prompt_tokens: tokens of their prompts.
        completion_tokens: expected tokens of their answers.
        most_tokens: tokens of their answers if each is as long as allowed.
    """

    stage: StageName
    calls: int
    prompt_tokens: int
    completion_tokens: int
    most_tokens: int


@dataclass(frozen=True)
class Estimate:
    """Estimate of a run, stage by stage."""

    stages: Sequence[StageEstimate]
    prices: PriceSettings | None

    @property
    def calls(self) -> int:
        """Number of calls of all stages."""
        return sum(stage.calls for stage in self.stages)

    def cost(self, most: bool = False) -> float:
        """Compute the cost of the estimated calls in the prices' currency. With `most`, it is the cost if every answer
        is as long as allowed.

        Raises:
            AssertionError: if there are no prices.
        """
        assert self.prices is not None
        answers = sum(stage.most_tokens if most else stage.completion_tokens for stage in self.stages)
        prompts = sum(stage.prompt_tokens for stage in self.stages)
        return (prompts * self.prices.input + answers * self.prices.output) / MILLION

    def rows(self) -> list[tuple[str, ...]]:
        """Return the estimate as a table of texts, the header first and the total last. Each row has a stage's calls,
        prompt tokens, answer tokens and maximum answer tokens.
        """
        head = ("stage", "calls", "prompt tokens", "answer tokens", "at most")
        rows = [(n.stage, n.calls, n.prompt_tokens, n.completion_tokens, n.most_tokens) for n in self.stages]
        total = ("all", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True)))
        return [head, *((str(name), *(f"{number:,}" for number in numbers)) for name, *numbers in [*rows, total])]

    def sentences(self) -> list[str]:
        """Return the sentences for below the table: a note on the estimate's accuracy and, with prices, the cost."""
        lines = ["Each stage leaves out some, so that the next take fewer calls; answers that cannot be used add some."]
        if self.prices is not None:
            expected, maximum, name = (
                format_amount(self.cost()),
                format_amount(self.cost(most=True)),
                self.prices.currency,
            )
            lines.append(f"Cost: about {expected} {name}, {maximum} {name} if every answer is as long as allowed.")

        return lines


def estimate(pipeline: Pipeline, job: SynthesisJob, log: AnswerLog) -> Estimate:
    """Estimate, for each stage of a job, the calls that are left to do and their tokens. Counted are the calls without
    a settled answer, and those that their answers will lead to.

    Each open call is assumed to give as many items as it asks for, and each item to lead to a call of the next stage.
    Advances the pipeline through all stages without asking anything.
    """
    stages, expected_drafts = [], 0  # drafts that answers of the stages before will add
    items_per_call: Mapping[StageName, int] = {"personas": job.personas, "queries": job.queries}
    texts = 0

    for stage, calls in pipeline.stages():
        if not job.asks(stage):
            stages.append(StageEstimate(stage, 0, 0, 0, 0))
            continue

        open_calls = [call for call in calls if not log.is_settled(call.key, job.limits.attempts)]
        # Calls that do not exist yet: their prompts are the template and a text of the stage before.
        template = estimate_tokens(pipeline.prompts[stage].text)
        prompts = sum(estimate_tokens(call.prompt) for call in open_calls) + expected_drafts * (template + texts)
        count = len(open_calls) + expected_drafts
        limit = job.stages[stage].max_tokens
        answer = min(limit, _mean_answer_tokens(stage, log) or ITEM_TOKENS[stage] * items_per_call.get(stage, 1))
        stages.append(StageEstimate(stage, count, prompts, round(count * answer), count * limit))
        expected_drafts = count * items_per_call.get(stage, 1)
        texts = ITEM_TOKENS["queries" if stage == "filter" else stage]

    return Estimate(stages, job.prices)


def format_amount(amount: float) -> str:
    """Format an amount, with 2 decimals from 1 on, else with 4."""
    return f"{amount:,.2f}" if amount >= 1 else f"{amount:.4f}"


def _mean_answer_tokens(stage: StageName, log: AnswerLog) -> float | None:
    """Return the mean tokens of a stage's logged answers, or None if there are none."""
    tokens = [record.completion_tokens for record in log if record.stage == stage]
    return sum(tokens) / len(tokens) if tokens else None
