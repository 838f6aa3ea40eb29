"""Advice on how to store the vectors of a source of texts or vectors, measured on held-out rows of that source.

request      the advice request
advise       the whole pipeline, from a source to an `Advice`
encoding     vectors of the sampled texts, without texts on which the encoder fails
sample       the sampled vectors: rows to fit on, held-out rows, the halves of their texts
places       the decision: what each place can hold, the bytes and the recall of each form
evidence     what is measured besides, if it is asked for:
debiasing      comparison of R1, R2, ABTT and whitening by split-half retrieval
matryoshka     test whether the first coordinates preserve more neighbours than random ones
sizes          comparison of reducers at several numbers of dimensions
sample_size    questions that the sample is too small for
report, tables, plots   the advice as sentences, HTML, JSON or plain text, with its tables and figures
"""
