"""Jobs: fits, advice, reindexings, trainings, adaptations and migrations, each in a process of its own.

http/routes ──► JobQueue ◄── JobRunner ──► process ──► the class of the job's kind
                │            in a server's thread for a folder, in `lathe worker` for Redis
                ├── FolderQueue   one server
                └── RedisQueue    replicas

job.py           a job as callers see it, and the protocol of a queue
requests.py      the table of the kinds, and what their requests have in common
kinds/           a class for each kind: its parameters, checked when they are read, and what it does
sources.py       paths and rows that requests name
folder.py        a queue in the state folder
redis_queue.py   a queue in Redis; redis_record.py has the records and files
runner.py        the loop that takes jobs and starts their processes
process.py       the process of a job
"""
