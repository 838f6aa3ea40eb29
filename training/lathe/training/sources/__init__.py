"""Sources of texts and vectors: local files and folders, remote files, data sets of the hub, and built-in texts.

source.py         `Source`, what a user names, as files, batches of rows and shards
shards.py         `Shard`, a range of rows of one file, and opening of files
readers.py        formats by file name: functions that read and count rows
  ├── lines.py, parquet.py, faiss_indexes.py, hub.py    one module for each format; .npy is in readers.py
  └── rows.py     `RawBatch` as read, and `RowBatch` after validation
remote.py         files at URLs
row_sample.py     random sample of distinct rows
writers.py        output files of rows with vectors
"""
