"""Evaluation of encoders and chains on labelled data sets, with mteb's evaluators.

suites.py      data sets and encoders of a suite                 ┐
tasks.py       tasks of mteb, reduced to a row limit             │ what is evaluated
encoders.py    encoders, and raw vectors by text                 │
methods.py     raw vectors, chains, and chains with rescoring    ┘
run.py         a whole run, resumed after a stop, and its progress
worker.py      scoring processes, their functions and results; model.py has the models that mteb evaluates
units.py       values of single queries, texts or pairs
comparison.py  paired differences, within and between data sets  ┐ which system is better,
decision.py    the answer in one sentence                        ┘ and how certain that is
report.py      tables, HTML page, JSON, CSV, plain text
"""
