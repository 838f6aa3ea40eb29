"""Encoders and chains measured on labelled data, by mteb's own evaluators.

suites.py     which data sets, which encoders            ┐
records.py    rows of files, checked and named           │ what is evaluated
layouts.py    rows of a data set → what mteb wants       │
tasks.py      data sets as mteb tasks                    │
limits.py     the same few rows each time                ┘
encoders.py   models, layers of models, bags of words    ┐
store.py      their raw output on disk, once             │ on what
methods.py    chains, the ladder, reducers: fitted once  ┘
model.py      stored vectors through a method, as mteb calls them
run.py        everything in order, taken up again where it stopped
statistics.py t, σ_cell, intervals, retention            ┐
findings.py   what the scores say                        │ is it better, how sure are we
report.py     JSON, CSV, HTML, the table in the terminal ┘
"""
