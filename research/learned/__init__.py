"""Steps that learn from queries and their documents: what they gain on held-out queries, and cost elsewhere."""
