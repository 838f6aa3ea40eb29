"""Evaluation of methods that are fitted on sentences without labels: debiasing and reducers, as in the papers.

corpus.py      sentences to fit on
methods.py     debiasing methods, reducers, nested chains cut to fewer dimensions
method_cache.py  cache of fitted methods, with the intrinsic measures of reductions
evaluation.py  the evaluation of `lathe evaluate` with these methods
"""
