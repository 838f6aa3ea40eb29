"""Evaluation of encoders and chains on labelled data sets, with mteb's evaluators.

suites.py      which data sets and encoders a suite names   ┐
tasks.py       tasks and benchmarks of mteb                 │ what is evaluated
limits.py      a fixed subset of the rows                   ┘
encoders.py    models                                       ┐
vectors.py     their raw vectors, by text                   │
methods.py     raw vectors and chains                       ┘
run.py         the whole run, resumed where it stopped, and its progress
pool.py        scoring processes; worker.py is what they run, model.py what mteb sees as a model
scores.py      results log: scores and tasks as JSON lines
units.py       values of single queries, texts or pairs
comparison.py  paired differences, by units and data sets   ┐ is it better,
decision.py    the answer in one sentence                   ┘ how sure are we
tables.py      as tables                                    ┐ output
report.py      HTML page, JSON, CSV, plain text             ┘
"""
