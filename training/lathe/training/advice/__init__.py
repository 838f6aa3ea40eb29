"""Advice on which transforms to apply to a source of vectors or texts, measured on held-out rows of that source.

advise          the whole pipeline, from a source to an `Advice`
request         the advice request
row_sample      random sample of the distinct rows of a source
encoding        vectors of the sampled texts, without texts on which the encoder fails
sample          the sampled vectors: rows to fit on, held-out rows, their text halves, out-of-domain text
split_half      split-half retrieval: each half of a text is searched with the other half
debiasing       comparison of R1, R2, ABTT and whitening
sizes           comparison of reducers at several numbers of dimensions
budgets         comparison of codes with what databases do by themselves, at equal numbers of bytes
database_codes  what databases do by themselves: RaBitQ, int8, sign bits, truncated floats
matryoshka      test whether the first coordinates preserve more neighbours than random ones
transfer        transfer evaluation of the recommended chain on out-of-domain text
cost            cost of a chain, in sentences
recommendation  choice of one chain, with reasons and cost, of a runner-up, and of a budget of bytes
sample_size     sample-size checks
summary, tables, plots, report   the advice as sentences, tables, figures, and as HTML, JSON or plain text
"""
