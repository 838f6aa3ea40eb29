"""Encoders and chains measured on labelled data, by mteb's own evaluators.

suites.py      which data sets, which encoders              ┐
records.py     rows of files, checked and named             │
layouts.py     rows of a data set → what a task holds       │ what is evaluated
hub.py         the same from the hub                        │
tasks.py       what a task holds → mteb's tasks             │
limits.py      the same few rows each time                  ┘
encoders.py    models, layers of models, bags of words      ┐
store.py       their raw output on disk, once               │
corpus.py      sentences to fit on                          │ on what
methods.py     chains, the ladder, reducers, few sentences  │
shelf.py       these fitted on disk, once                   ┘
run.py         everything in order, taken up again where it stopped
pool.py        the processes that score, which may die; worker.py is what they do, model.py what mteb sees
scores.py      scores and tasks on disk, a line each
grid.py        scores as arrays                             ┐
statistics.py  t, σ_cell, intervals, retention              │
comparison.py  methods against raw vectors                  │ is it better,
reduction.py   what reductions keep                         │ how sure are we
findings.py    all of it                                    ┘
audit/         what is odd about the encoders' vectors
words.py       findings as sentences                        ┐
tables.py      as tables                                    │ written down
plots.py       as pictures                                  │
page.py        the page; report.py JSON, CSV, the terminal  ┘
"""
