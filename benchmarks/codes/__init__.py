"""Benchmark of codes against FAISS and other packages: what a budget of bytes finds of neighbours and documents.

    python -m benchmarks.codes --data FOLDER --encoders FOLDER --work FOLDER

data.py        texts of the corpora and search tasks, and their vectors, cached by encoder
methods.py     Lathe's codes and FAISS's, each at an equal number of bytes with all factors counted
packages.py    rivals of other packages, which are optional
measure.py     recall of neighbours, nDCG of tasks, paired intervals
plot.py        recall by bytes as a figure
rates.py       vectors encoded and codes scored in a second
"""
