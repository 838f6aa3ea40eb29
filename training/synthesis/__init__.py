"""Training pairs made by a language model from questions with answers, as FinMTEB does (its Section 4.2).

job.py         the YAML a user writes
seeds.py       questions with answers, and what tells them apart
templates.py   the four prompts: shipped in templates/, or a user's own
stages.py      personas → queries → filter → documents: what each fills in and how its answers are read
reading.py     an answer as items, however it was wrapped
faults.py      what is wrong with a text: refused, cut, blank, too long, another script, in a loop
near.py        texts that are nearly alike: MinHash, confirmed
held_out.py    texts that test sets know
endpoint.py    where requests go, and the key
chat.py        the protocol: one request, one answer or one kind of failure
pace.py        requests and tokens a minute
budget.py      requests and tokens in all
book.py        every answer on disk, so that nothing is asked twice
asking.py      calls asked at once, again where that helps, until all are answered or nothing more may be spent
pipeline.py    what is to be asked next, and the pairs that come of it, by the book alone
estimate.py    calls, tokens and cost before anything is asked
run.py         a job in order
report.py      pairs, what was rejected and why, the figures
"""
