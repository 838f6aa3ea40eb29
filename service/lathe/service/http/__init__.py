"""HTTP checks before the routes: limits on request size and time, allowed origins, and memory for request bodies."""
