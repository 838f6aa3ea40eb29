"""Is a suite of data sets another domain than another suite: the questions of *FinMTEB*, with what they can tell.

blocks.py           scores by type of task                        ┐
ranking.py          do both suites rank encoders alike            │ from the scores
reliability.py      does one suite, in two halves                 │ of two evaluations
pairwise.py         which encoder is better                       │
variance.py         what scores go with: encoder or domain        ┘
examples.py         how an encoder does on one example            ┐
measures.py         on a few, many drawings at once               │ from the vectors
samples.py          the drawings                                  │ that these stored
texts.py            a thousand texts, where they lie              │
similarity.py       how near data sets lie                        ┘
characteristics.py  what texts are like                           ┐ from the texts
tokens.py           counted by an encoder's tokenizer; parser.py  ┘
work.py             what worker processes do of it
compare.py          everything in order → comparison.py
words.py            as sentences; tables.py, plots.py, report.py: written down
"""

from training.research.domains.compare import compare, require_different
from training.research.domains.comparison import Comparison
from training.research.domains.report import in_terminal, write_comparison

__all__ = ["Comparison", "compare", "in_terminal", "require_different", "write_comparison"]
