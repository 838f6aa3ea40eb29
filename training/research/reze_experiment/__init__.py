"""REZE and its rivals under one protocol, as the paper's Section 4 compares them.

settings.py   the YAML: targets, methods, sizes, seeds, learning rates    ┐
targets.py    which data sets are left out in turn (Section 4.1.1)        │ what is compared
arms.py       what is done before the fine-tuning that all share          │
domain.py     held-out text of all sources, to measure drift on           │
plan.py       the units of all that                                       ┘
scoring.py    how good an encoder is on a target, by mteb's evaluators    ┐
unit.py       one arm, target, learning rate and seed, from start to end  │ measuring
book.py       results on disk, a file for each unit, a line for each cell ┘
run.py        all units in processes, taken up again where they stopped
findings.py   averages, paired differences and their intervals            ┐
tables.py     Tables 2 and 3, per task                                    │ written down
plots.py      Figures 2, 3 and 4                                          │
words.py      what it says, in sentences                                  │
report.py     CSV, PNG, JSON and one page                                 ┘
"""
