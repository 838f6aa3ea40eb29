"""Synthesis of training pairs by a language model from questions with answers, as in Section 4.2 of FinMTEB.

job.py              settings of a job, which a user writes as YAML
templates.py        the four prompt templates: shipped in templates/, or the user's
answer_parsing.py   personas → queries → filter → documents: the calls of a stage, and answers parsed into items and
                    rejected texts: refused, blank, …
near_duplicates.py  near duplicates: MinHash candidates, confirmed
held_out.py         texts that match a text of a test set
chat.py             the chat completions protocol: one request to an endpoint, and its answer
answer_log.py       the answer log: every answer on disk, so that no request is repeated
sender.py           concurrent requests, until all calls are answered or the budget is spent
pipeline.py         seeds, the calls of the next stage, and the resulting pairs, derived from the answer log alone
run.py              a job from start to end
report.py           pairs, rejected texts with reasons, statistics
"""
