"""Audit of encoders: anomalies of their vectors, beside their scores (Appendices C to F, M and N of the paper).

means.py         norms, and the mean by sample size, language, prompt  ┐ from vectors, without scores;
texts.py         which texts are measured                              │ stored once for each encoder
probe.py         encodes and measures them                             ┘
evaluation.py    evaluation that audits every encoder
stored_audit.py  the stored audit of an encoder
profile.py       random direction by seed, outliers of R2: from scores
findings.py      all of it
summary.py       as sentences                                          ┐
tables.py        as tables                                             │ output
plots.py         as figures                                            │
report.py        as files and for the terminal                         ┘
"""
