"""Statistics of the papers on scores of an evaluation, which `lathe evaluate` does not report.

comparison.py  methods against raw vectors, as in the mean-bias paper: t by family of tasks, ‖μ‖, large effects
reductions.py  geometry and scores, and other languages, as in the GeoPres paper
statistics.py  paired t, σ_cell, bootstrap, correlations
findings.py    all of them, and as sentences
tables.py, plots.py, report.py
"""
