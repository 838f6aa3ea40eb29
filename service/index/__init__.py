"""The index: vectors kept for good in SQLite, searched through a graph that can always be made anew.

.<index>.lock            held by the one process that owns the index (see ownership)
<index>/
├── owner.json           which process that is
├── record.db            the record: every original vector, payload and setting (see record)
└── graph-<generation>/  rows, graph and their checksums, all made from the record (see snapshot);
                         beside it, for a while, the next one and its lock (see adoption)

          upsert                                   search
             │                                        │
  record (SQLite, fsynced)               chain: query ► reduced query
             │ acknowledged                           │
     rows (memmaps, appended)    graph over rows 0 … c  +  exact search of rows c … n
             │                                        │
     keeper: adds rows to the graph,     candidates ► rescored with the originals
     writes snapshots, adopts reindexed               │
     generations                             ids, scores, metadata
"""
