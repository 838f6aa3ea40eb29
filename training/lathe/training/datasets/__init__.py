"""Data sets in files and on the hub: one layout for each task, tests as mteb tasks, and rows as training pairs.

data_set.py       interface of data sets, training pairs of a split, and overlap with test texts
folder.py, hub.py data sets in folders and files, and on the Hugging Face hub
layout.py         interface of a layout, which knows the files and fields of one task
layouts/          the layouts
records.py        validated rows, and the content of a test: `Tables` of columns, or a `Search`
pairs.py          training pairs, and how they are built from rows
mteb_tasks.py     tests as tasks of mteb
"""
