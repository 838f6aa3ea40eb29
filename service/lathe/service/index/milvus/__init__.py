"""Indexes stored in Milvus, for more vectors than one machine holds, and shared by any number of servers.

indexes.py      all indexes of a Milvus: create, find, delete       (as service/lathe/service/index/embedded/indexes.py)
index.py        one index: insert, search, rescore                  (as service/lathe/service/index/embedded/index.py)
collections.py  the fields and parameters of its collection, and the catalogue: settings and chains of all indexes, in a
                collection of their own
expressions.py  filters as Milvus expressions, and the fields that they need
client.py       the connection: time limits, and conversion of pymilvus's errors

An index is one collection: the reduced vectors in an HNSW graph, the originals next to them for rescoring, and the
metadata. Milvus is the record: nothing is stored here but settings and chains that never change.
"""
