"""Statistics of live traffic, computed besides the requests from their vectors, never from texts."""
