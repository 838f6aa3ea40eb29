"""Synthesis of training pairs by a language model from questions with answers, as in FinMTEB (its Section 4.2).

job.py              the YAML that a user writes
templates.py        the four prompt templates: shipped in templates/, or a user's own
answer_parsing.py   personas → queries → filter → documents: the requests of each stage, and answers parsed into items,
                    however they are wrapped, with faults of a text: refused, blank, …
near_duplicates.py  near duplicates: MinHash candidates, confirmed
held_out.py         matches of texts with test sets
chat.py             the protocol: one request to an endpoint, and its answer
answer_log.py       the answer log: every answer on disk, so that nothing is asked twice
sender.py           concurrent requests, until all calls are answered or the budget is spent
pipeline.py         the seeds, the next calls, and the resulting pairs, derived from the answer log alone
run.py              a job from start to end
report.py           pairs, rejected texts with reasons, statistics
"""
