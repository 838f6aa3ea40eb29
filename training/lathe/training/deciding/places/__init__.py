"""Form in which a place, such as pgvector, should store vectors: bytes, recall, and commands of every form it can hold.

forms.py       forms in which places store a vector, and searches through vectors in these forms
recall.py      recall among the sampled rows, and extrapolation to more rows
databases.py   forms that a place can hold (places.toml), their bytes, and commands for them (snippets/)
engines.py     searches in the places' own engines
decision.py    the choice among the candidates, as a sentence
"""
