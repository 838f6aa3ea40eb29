"""HTTP routes, a file for each family."""
