"""The kinds of jobs: each file has the class of a kind's requests, whose `run` does the work.

To add a kind, write a file here, and add a line to `lathe.service.jobs.requests.KINDS`.
"""
