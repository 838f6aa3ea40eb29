"""State that replicas share in Redis: chains, size routes, cached vectors, jobs.

link.py      the connection, and whether it works
record.py    how a chain is stored in Redis
registry.py  chains: Redis has the record, each replica serves from a copy on its disk
places.py    size routes, stored the same way
copy.py      updates the local replica, and knows what of it is out of date
follower.py  calls it when the record changes
cache.py     vectors of texts, as float16
damage.py    counts records that cannot be read, and logs each once
(jobs are in service.jobs.shared)

lathe:registry            {"id", "schema"}; distinguishes this Redis from another, or from one that lost its data
lathe:chain:<name>        hash: pointer, and version:<n> → the SHA-256 of its two files and the job that made it
lathe:artifact:<name>:<n> hash: manifest, tensors
lathe:places              hash: encoder fingerprint → {size: chain}
lathe:changes             stream: which chain changed, or that size routes did
lathe:cache:<generation>  hash: key of a text → its vector
lathe:jobs                sorted set: ids of jobs by creation time
lathe:job:<id>            hash: what a job is, and its end; see service.jobs.record
lathe:job:<id>:<file>     list: the bytes of an input or a result, in pieces
lathe:queue:<queue>       list: ids of waiting jobs, the next one first
lathe:running             sorted set: ids of running jobs, by their worker's last heartbeat
lathe:workers:<queue>     sorted set: workers, by their last heartbeat
lathe:results             hash: id of a job → bytes of its results

All of it is data only, checked when read: others may write to this Redis too, and damaged records stop nothing.
"""
