"""Jobs that replicas share in Redis, and the worker that runs them."""
