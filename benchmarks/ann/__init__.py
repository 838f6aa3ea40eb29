"""The benchmark that judges a reduction by the neighbours it finds: `python -m benchmarks.ann --help`.

data.py      the vectors: read, checked, split anew by each seed
spaces.py    what they are reduced to, and how long that takes a query
engines.py   what searches them: hnswlib, FAISS and its codes, exact search, our server
point.py     one graph or code, built and searched at every setting, in a process of its own
grid.py      all points, one after another; a stopped run goes on
frontier.py  speed at equal recall, over seeds
sizes.py     methods at equal bytes, by exact search
figure.py    the GeoPres paper's Figure 1: recall and latency by dimension
findings.py  what it comes to: equal recall, growth with N, ten million (computed)
words.py, plots.py, report.py   the same in sentences, pictures, tables and files
"""
