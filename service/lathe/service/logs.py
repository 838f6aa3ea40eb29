"""Logging to stdout, one line of JSON per event.

Code logs through the standard library, as uvicorn and other libraries do; one formatter writes all records alike. Until
`configure` is called nothing is set up, so that programs that import Lathe keep their own logging.
"""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

import orjson

RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every log record; others are a record's `extra`."""

CONTEXT: ContextVar[dict[str, Any]] = ContextVar("context", default={})  # noqa: B039 - never changed, only replaced


def configure(level: str) -> None:
    """Write this process's logs to stdout as JSON: the service's from `level` on, other libraries' from warning on.

    The root logger's handlers are replaced. Below warning, some libraries quote addresses and headers.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("lathe.service").setLevel(number)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add fields, such as the id of a request, to all lines logged in a block, also in tasks and threads it starts."""
    token = CONTEXT.set(CONTEXT.get() | fields)
    try:
        yield
    finally:
        CONTEXT.reset(token)


class JsonFormatter(logging.Formatter):
    """Formatter of a record as one line of JSON: time, level, logger and message, then its context and its `extra`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON; with the traceback as `exception` if it has one."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        event = {"timestamp": time, "level": record.levelname.lower(), "logger": record.name}
        event |= {"event": record.getMessage()} | CONTEXT.get()
        event |= {name: value for name, value in vars(record).items() if name not in RECORD_FIELDS}
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        return _dump_line(event)


def _dump_line(event: dict[str, Any]) -> str:
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:  # a path that is not UTF-8, or a number over 64 bits: `json` escapes and writes them
        return json.dumps(event, default=repr)
