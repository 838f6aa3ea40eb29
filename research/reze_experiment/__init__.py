"""Experiment that compares REZE with its rivals under one protocol, as in the paper's Section 4.

settings.py   the YAML: targets, methods, sizes, seeds, learning rates     ┐
targets.py    the data sets that are held out, one at a time (4.1.1)       │ what is compared
conditions.py       the conditions: what precedes the common fine-tuning         │
domain.py     held-out text of all sources, to measure drift on            │
plan.py       the list of all units                                        ┘
scoring.py    the score of an encoder on a target, by mteb's evaluators    ┐
unit.py       one condition, target, learning rate and seed, start to end  │ measuring
results.py    results of cells, as they are in the results logs            ┘
run.py        runs all units in processes, resumes where it was stopped
findings.py   averages, paired differences and their intervals             ┐
tables.py     Tables 2 and 3, per task                                     │ output
plots.py      Figures 2, 3 and 4                                           │
summary.py    the findings in sentences                                    │
report.py     CSV, PNG, JSON and one HTML page                             ┘
"""
