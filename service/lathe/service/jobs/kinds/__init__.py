"""The kinds of jobs: a class for the requests of each, whose `run` does the work.

To add a kind, write its class, and add a line to `lathe.service.jobs.requests.KINDS`.
"""
