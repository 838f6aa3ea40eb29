"""Findings of an evaluation: comparisons of encoders and chains, and the answer."""

from collections.abc import Sequence
from dataclasses import dataclass

from lathe.training.evaluation.comparison import Comparison, compare_systems
from lathe.training.evaluation.decision import Decision, decide, describe_comparison
from lathe.training.evaluation.grid import Grid
from lathe.training.evaluation.run import Results


@dataclass(frozen=True)
class Findings:
    """Findings of one evaluation.

    Attributes:
        decision: the answer.
        comparisons: all comparisons of encoders and chains.
    """

    decision: Decision
    comparisons: Sequence[Comparison]


def compute_findings(results: Results) -> Findings:
    """Compare the encoders and chains of an evaluation, and return the comparisons with the answer."""
    comparisons = compare_systems(Grid(results), results.scores)
    return Findings(decide(results, comparisons), comparisons)


def summarize(findings: Findings) -> list[str]:
    """Summarize the findings as a list of sentences: the answer, then all other comparisons."""
    comparisons = [describe_comparison(comparison) for comparison in findings.comparisons]
    other_sentences = [sentence for sentence in comparisons if sentence != findings.decision.sentence]
    return [findings.decision.sentence, *other_sentences]
