"""Findings of an evaluation: comparisons of encoders and methods, the answer, and what reductions retain."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lathe.training.evaluation.comparison import Comparison, compare_systems
from lathe.training.evaluation.decision import Decision, decide, describe_comparison
from lathe.training.evaluation.grid import Grid
from lathe.training.evaluation.reduction import Retention, compute_retentions
from lathe.training.evaluation.run import Results
from lathe.training.reporting.sentences import render_sentences

TEMPLATE = Path(__file__).with_name("summary.txt.j2")
"""Template of the sentences."""


@dataclass(frozen=True)
class Findings:
    """Findings of one evaluation.

    Parts whose methods were not requested are empty.

    Attributes:
        decision: the answer.
        comparisons: all comparisons of encoders and methods.
        retentions: share of the score that reducers and nested chains retain.
    """

    decision: Decision
    comparisons: Sequence[Comparison]
    retentions: Sequence[Retention]


def compute_findings(results: Results) -> Findings:
    """Compare the encoders and methods of an evaluation.
    Return the decision, the comparisons, and the share of the score that each reduction retains.
    """
    grid = Grid(results)
    comparisons = compare_systems(grid, results.scores)
    return Findings(decide(results, comparisons), comparisons, compute_retentions(grid))


def summarize(findings: Findings) -> list[str]:
    """Summarize the findings as a list of sentences.
    The decision comes first, then the other comparisons, then the share of the score that reductions retain.
    """
    comparisons = [describe_comparison(comparison) for comparison in findings.comparisons]
    other_sentences = [sentence for sentence in comparisons if sentence != findings.decision.sentence]
    retentions = render_sentences(TEMPLATE, {"retentions": findings.retentions})
    return [findings.decision.sentence, *other_sentences, *retentions]
