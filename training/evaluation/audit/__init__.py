"""Anomalies of the encoders' vectors, beside their scores (Appendices C to F, M and N of the mean-bias paper).

measure.py    norms, and the mean by sample size, language, prompt  ┐ from vectors, without scores;
texts.py      which texts are measured                              │ stored once for each encoder
probe.py      encodes and measures them                             ┘
record.py     the stored audit of an encoder
profile.py    random direction by seed, outliers of R2: from scores
findings.py   all of it
words.py      as sentences                                          ┐
tables.py     as tables                                             │ output
plots.py      as figures                                            ┘
"""
