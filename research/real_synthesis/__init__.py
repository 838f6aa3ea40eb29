"""Synthesis with a real language model, from seeds to trained encoders: how the path holds, and how poor the pairs are.

__main__   command line, table, raw figures
path       seeds, jobs, `lathe train synthesize` with kills of lathe and of the server
texts      what the answers and pairs look like: form, copies, repetition
encoders   round-trip consistency by other encoders, trainings on the pairs, nDCG@10
"""
