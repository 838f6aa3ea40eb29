"""What replicas have in common, kept in Redis: chains, places, vectors of texts seen before, jobs.

link.py      the connection, and whether it works
record.py    how a chain is written in Redis
registry.py  chains: Redis has the record, each replica a copy on its disk that it serves from
places.py    which chain answers which size, the same way
copy.py      brings the copy up to date, and knows what of it is behind
follower.py  does so when the record changes
cache.py     vectors of texts, as float16
damage.py    counts what cannot be read, and says it once
(jobs are in service.jobs.shared)

lathe:registry            {"id", "schema"}; tells this Redis from another, or from one that lost its data
lathe:chain:<name>        hash: pointer, and version:<n> → the SHA-256 of its two files and the job that made it
lathe:artifact:<name>:<n> hash: manifest, tensors
lathe:places              hash: encoder fingerprint → {place: chain}
lathe:changes             stream: which chain changed, or that places did
lathe:cache:<generation>  hash: key of a text → its vector
lathe:jobs                sorted set: ids of jobs by when they were made
lathe:job:<id>            hash: what a job is, and its end; see service.jobs.record
lathe:job:<id>:<file>     list: the bytes of an input or a result, in pieces
lathe:queue:<queue>       list: ids of jobs that wait, the next one first
lathe:running             sorted set: ids of jobs that run, by when their worker was heard of last
lathe:workers:<queue>     sorted set: workers, by when they were heard of last
lathe:results             hash: id of a job → bytes of its results

All of it is data alone, checked where it is read: others may write there too, and what is damaged stops nothing.
"""
