"""Codes: how much of the neighbours and of a search task survives in a budget of bytes, against FAISS.

    python -m benchmarks.codes --data FOLDER --encoders FOLDER --work FOLDER

data.py        texts of the corpora and search tasks, and their vectors, cached by encoder
methods.py     Lathe's codes and its rivals, each at an equal number of bytes with all factors counted
measure.py     recall of neighbours, nDCG of tasks, paired intervals
plot.py        recall by bytes as a picture
rates.py       vectors encoded and scored in a second
"""
