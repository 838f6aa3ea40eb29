"""Which form of the vectors to store in a place, such as pgvector: its bytes, its recall, and the commands.

forms.py       forms of a vector that places store, and searches through them
recall.py      recall among the sampled rows, and what to expect among more
databases.py   what each place can hold (places.toml), its bytes, and lines that create, fill and search it (snippets/)
engines.py     searches in the places' own engines
decision.py    the choice among the candidates, and the sentence that says it
"""
