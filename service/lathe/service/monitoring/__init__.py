"""Statistics of live traffic, computed from the requests' vectors, never from texts."""
