"""Transforms in order, applied as one."""
