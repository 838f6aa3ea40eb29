"""Logging to stdout, one line of JSON per event.

Code logs through the standard library, as uvicorn and other libraries do; structlog formats all records alike. Until
`configure` is called nothing is set up, so that programs that import Lathe keep their own logging.
"""

import json
import logging
import sys
from typing import Any

import orjson
import structlog
from structlog.typing import EventDict, WrappedLogger

HEAD = ("timestamp", "level", "logger", "event")
"""Keys that every line begins with, in this order, for human readers."""


def configure(level: str) -> None:
    """Write this process's logs to stdout as JSON: the service's from `level` on, other libraries' from warning on.

    The root logger's handlers are replaced. Below warning, some libraries quote addresses and headers.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(build_formatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("service").setLevel(number)


def build_formatter() -> structlog.stdlib.ProcessorFormatter:
    """Return the formatter that renders a record as JSON with its `extra` and context, such as the request id."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.contextvars.merge_contextvars, structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            _put_head_first,
            structlog.processors.JSONRenderer(serializer=_dump_line),
        ],
    )


def _put_head_first(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Return the event with the keys in `HEAD` first; a structlog processor."""
    return {**{key: event[key] for key in HEAD}, **event}


def _dump_line(event: dict[str, Any], **_: Any) -> str:
    """Serialize an event to one line of JSON; values that are not JSON are written as their `repr`."""
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:  # a path that is not UTF-8, or a number over 64 bits: `json` escapes and writes them
        return json.dumps(event, default=repr)
