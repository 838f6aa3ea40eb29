"""A checkup of stored vectors: what is wrong with the rows, and where a search loses its hits."""
