"""Encoders at work: admission, queue, and the processes that own the models."""

from service.engine.engine import Engine
from service.engine.work import ChainRef, Embedded, EncodeOptions, Work

__all__ = ["ChainRef", "Embedded", "EncodeOptions", "Engine", "Work"]
