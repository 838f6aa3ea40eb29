"""Trials of the images and of Compose with a real container engine: `python -m tests.containers`."""
