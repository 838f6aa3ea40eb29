"""Which form of the vectors to store in a place, such as pgvector: its bytes, its recall, and the commands.

forms.py       forms of a vector that places store, searches through them, and what a place can hold, with its bytes
recall.py      recall among the sampled rows, and what to expect among more
databases.py   the places, and lines that create, fill and search each, from the templates in snippets/
decision.py    the choice among the candidates, and the sentence that says it
"""
