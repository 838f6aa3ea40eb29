"""Which form of the vectors to store in a place, such as pgvector: its bytes, its recall, and the commands.

forms.py       forms of a vector that places store, and searches through them
recall.py      recall among the sampled rows, and what to expect among more
place.py       what a place can hold, as candidates with their bytes
databases.py   the places
commands.py    lines that create, fill and search each place, from the templates in snippets/
decision.py    the choice among the candidates, and the sentence that says it
"""
