"""Logs: one line of JSON an event, on stdout.

Code logs through the standard library, as uvicorn and every other library does; structlog renders it
all alike. Until `configure` is called nothing is set up, so that whoever imports Lathe keeps their own.
"""

import json
import logging
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

HEAD = ("timestamp", "level", "logger", "event")
"""What every line begins with, in this order, for people who read along."""


def configure(level: str) -> None:
    """Write this process's logs to stdout, those of the service from a level on.

    Other libraries speak from warning on only: below that some of them quote addresses and headers.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(formatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("service").setLevel(number)


def formatter() -> structlog.stdlib.ProcessorFormatter:
    """Renders a record with its `extra` and what is bound to the context, as the id of the request is."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.contextvars.merge_contextvars, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            in_order,
            structlog.processors.JSONRenderer(serializer=dump_line),
        ],
    )


def in_order(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """The same with its head first."""
    return {**{key: event[key] for key in HEAD}, **event}


def dump_line(event: dict[str, Any], **_: Any) -> str:
    """One line of JSON of whatever was logged."""
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:  # a path that is no UTF-8, a number past 64 bits: still one line, escaped
        return json.dumps(event, default=repr)
