"""Indexes kept in Milvus, for more vectors than one machine holds; any number of servers may share them.

indexes.py      the indexes of a Milvus: made, found, deleted       (as service/index/indexes.py)
index.py        one of them: filled, searched, rescored             (as service/index/index.py)
collections.py  their fields and parameters in Milvus
catalogue.py    the settings and chains of all indexes, in a collection of their own
expressions.py  filters as Milvus's expressions, and what items say to them
client.py       the connection: time limits, and errors in our words

An index is one collection: the reduced vectors in an HNSW graph, the originals beside them for rescoring, and the
metadata. Milvus is the record: nothing is kept here but settings and chains that never change.
"""
