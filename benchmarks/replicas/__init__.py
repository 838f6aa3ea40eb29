"""Benchmarks of replicas of a server that share a Redis.

cluster.py   a Redis, servers, workers and nginx, each a process of its own
switch.py    how soon a promotion is served everywhere, and what a vector in Redis saves
kills.py     workers killed at random: what becomes of their jobs
soak.py      mixed load for minutes: failures, latency, memory
"""
