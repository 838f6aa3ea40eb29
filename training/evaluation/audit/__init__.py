"""What is odd about the encoders' vectors, beside their scores (Appendices C to F, M and N of the mean-bias paper).

measure.py    norms, the mean by sample, language and prompt    ┐ of vectors, without scores:
texts.py      which texts are measured                          │ kept on disk, once for each encoder
probe.py      an encoder's vectors of these, measured           ┘
profile.py    the random direction by seed, where R2 stands out   from scores
findings.py   all of it
words.py      as sentences                                      ┐
tables.py     as tables                                         │ written down
plots.py      as pictures                                       ┘
"""
