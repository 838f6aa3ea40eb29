"""State that replicas share in Redis: chains, trained encoders, size routes, cached vectors, jobs.

replica.py          everything below for one server, opened as one object; the thread that copies each change, and
                    remembers what could not be copied
connection.py       the connection, whether Redis can be used, and how many of its records cannot be read
version_record.py   how a chain or trained encoder and the files of its versions are recorded in Redis
shared_versions.py  which set of versions a Redis holds, changes to them, and the local copy that is served
registry.py         the chains, size routes and trained encoders of all replicas
cache.py            vectors of texts, as float16
(jobs are in lathe.service.jobs.redis_queue)

lathe:registry            {"id", "schema"}; distinguishes this Redis from another, or from one that lost its data
lathe:chain:<name>        hash: pointer, and version:<n> → the SHA-256 of its manifest and the job that made it
lathe:encoder:<name>      hash: the same of a trained encoder
lathe:files:<digest>      hash: manifest of a version, and the pieces of its other files
lathe:size_routes         hash: encoder fingerprint → {size: chain}
lathe:changes             stream: which chain or trained encoder changed, or that size routes did
lathe:cache:<generation>  hash: key of a text → its vector
lathe:jobs                sorted set: ids of jobs by creation time
lathe:job:<id>            hash: what a job is, and its end; see lathe.service.jobs.redis_record
lathe:job:<id>:<file>     list: the bytes of an input or a result, in pieces
lathe:queue:<queue>       list: ids of waiting jobs, the next one first
lathe:running             sorted set: ids of running jobs, by their worker's last heartbeat
lathe:workers:<queue>     sorted set: workers, by their last heartbeat
lathe:results             hash: id of a job → bytes of its results

All of it is data only, checked when read: others may write to this Redis too, and damaged records stop nothing.
"""
