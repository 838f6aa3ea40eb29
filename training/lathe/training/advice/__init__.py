"""Advice on how to store the vectors of a source of texts or vectors, measured on held-out rows of that source.

request      the advice request
advise       the whole pipeline, from a source to an `Advice`
sample       the sampled vectors: rows to fit on, held-out rows, the halves of their texts, if the encoder takes them
places       the decision: what each place can hold, the bytes and the recall of each form
evidence     what is measured besides, if it is asked for, such as whether the first coordinates are the best ones, and
             what the sample is too small for:
debiasing      comparison of R1, R2, ABTT and whitening by split-half retrieval
sizes          comparison of reducers at several numbers of dimensions
report       the advice as sentences, HTML, JSON or plain text, with its tables and figures
"""
