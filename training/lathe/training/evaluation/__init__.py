"""Evaluation of encoders and chains on labelled data sets, with mteb's evaluators.

suites.py      which data sets and encoders a suite names   ┐
tasks.py       tasks of mteb, a fixed subset of their rows  │ what is evaluated
encoders.py    models, and their raw vectors by text        │
methods.py     raw vectors and chains                       ┘
run.py         the whole run, resumed where it stopped, and its progress
worker.py      scoring processes, what they run and its results; model.py is what mteb sees as a model
units.py       values of single queries, texts or pairs
comparison.py  paired differences, by units and data sets   ┐ is it better,
decision.py    the answer in one sentence                   ┘ how sure are we
report.py      tables, HTML page, JSON, CSV, plain text
"""
