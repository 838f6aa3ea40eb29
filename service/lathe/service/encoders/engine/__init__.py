"""Encoders at work: admission, queue, and the processes that own the models."""
