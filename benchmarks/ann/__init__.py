"""Benchmark of reductions by the neighbours that searches find: `python -m benchmarks.ann --help`.

data.py      vectors: reading, checks, and a random split for each seed
spaces.py    the methods that reduce vectors, and how queries are reduced
engines.py   engines that search: hnswlib, FAISS and its codes, exact search, Lathe's server
searches.py  a search by an engine in this process, or by Lathe's index over HTTP
point.py     one graph or code, built and searched at every setting, in a process of its own
grid.py      all points, one after another; a stopped run continues
frontier.py  speed at equal recall, over seeds
sizes.py     methods at equal bytes, by exact search
figure.py    the GeoPres paper's Figure 1: recall and latency by dimension
findings.py  results computed from the points: equal recall, growth with N, ten million (computed)
summary.py, plots.py, report.py   the results as sentences, figures, tables and files
"""
