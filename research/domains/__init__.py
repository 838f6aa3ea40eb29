"""Comparison of two suites of data sets: are they different domains? The questions of *FinMTEB*.

blocks.py           scores by type of task                                ┐
ranking.py          rank correlation of the encoders between the suites   │ from the scores
reliability.py      rank correlation between two halves of one suite      │ of two evaluations
pairwise.py         paired tests of encoders                              │
variance.py         analysis of variance: encoder and domain              ┘
examples.py         the score of an encoder on each example               ┐
measures.py         metrics of many bootstrap samples at once             │ from the vectors
samples.py          the bootstrap samples                                 │ stored by these
texts.py            a thousand texts of a data set and their mean vector  │ evaluations
similarity.py       cosines between the data sets' mean vectors           ┘
characteristics.py  lengths and vocabulary of texts                       ┐ from the texts
tokens.py           token counts by an encoder's tokenizer; parser.py     ┘
work.py             the part of the work that worker processes do
compare.py          runs everything in order → comparison.py
summary.py          the result as sentences; tables.py, plots.py, report.py: the files
"""

from research.domains.compare import compare, require_different
from research.domains.comparison import Comparison
from research.domains.report import format_terminal, write_comparison

__all__ = ["Comparison", "compare", "format_terminal", "require_different", "write_comparison"]
