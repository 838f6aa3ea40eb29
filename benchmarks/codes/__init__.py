"""Benchmark of codes against FAISS: how many neighbours and how much of a search task a budget of bytes retains.

    python -m benchmarks.codes --data FOLDER --encoders FOLDER --work FOLDER

data.py        texts of the corpora and search tasks, and their vectors, cached by encoder
methods.py     Lathe's codes and its rivals, each at an equal number of bytes with all factors counted
measure.py     recall of neighbours, nDCG of tasks, paired intervals
plot.py        recall by bytes as a figure
rates.py       vectors encoded and scored in a second
"""
