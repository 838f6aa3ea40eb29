"""Tables of PostgreSQL with the extension pgvector: indexes are exported to them, and their vectors are reduced there.

Every write is a transaction of one batch. An interrupted command leaves whole batches, and the same command completes
them. The comment of a column of vectors names their space, so that vectors of two spaces are never mixed in a column.
"""
