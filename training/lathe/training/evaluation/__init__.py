"""Evaluation of encoders and chains on labelled data sets, with mteb's evaluators.

suites.py      which data sets and encoders a suite names   ┐
tasks.py       tasks and benchmarks of mteb                 │ what is evaluated
limits.py      a fixed subset of the rows                   ┘
encoders.py    models                                       ┐
store.py       their raw vectors on disk                    │
corpus.py      sentences to fit on                          │ on what
methods.py     chains, debiasing methods, reducers          │
method_cache.py  cache of fitted methods                    ┘
run.py         the whole run, resumed where it stopped
pool.py        scoring processes; worker.py is what they run, model.py what mteb sees as a model
scores.py      results log: scores and tasks as JSON lines
grid.py        scores as arrays                             ┐
statistics.py  t, σ_cell, intervals, correlations           │
comparison.py  methods against raw vectors                  │ is it better,
reduction.py   retention of reducers                        │ how sure are we
findings.py    all statistics of a run, and as sentences    ┘
tables.py      as tables                                    ┐ output
plots.py       as figures                                   │
report.py      HTML page, JSON, CSV, plain text             ┘
"""
