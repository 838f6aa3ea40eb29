"""Embedded index: vectors stored durably in SQLite, and searched through a graph that can always be rebuilt.

.<index>.lock            held by the one process that owns the index (see indexes)
<index>/
├── owner.json           which process that is
├── record.db            the record: every original vector, payload and setting (see record)
└── graph-<generation>/  rows, graph and their checksums, all built from the record (see snapshot);
                         during a reindexing also the next generation and its lock (see maintenance)

          upsert                                   search
             │                                        │
  record (SQLite, fsynced)               chain: query ► reduced query
             │ acknowledged                           │
     rows (memmaps, appended)    graph over rows 0 … c  +  exact search of rows c … n
             │                                        │
     maintenance thread: adds rows to    candidates ► rescored with the originals
     the graph, writes snapshots,                     │
     cuts over to new generations        ids, scores, metadata

indexes      all indexes of a folder        generation      rows, graph and chain that belong together
index        one index: the state's owner   rows, snapshot  its files, and how far they can be trusted
serving      what one search sees           graphs/, exact  the two ways to find the nearest rows
maintenance  the thread, and the cutover    vector_formats  floats or codes in the rows
record       what cannot be rebuilt         filter_masks    the rows that satisfy a filter
record_file  its tables and connections     backup, damage  copies and checks of records
"""
