"""Experiments on the papers' claims and on methods against one another; not packaged. `make research` tests them."""
