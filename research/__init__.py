"""Experiments on the papers' claims and on methods against one another.

Not packaged. `make research` tests them.
"""
