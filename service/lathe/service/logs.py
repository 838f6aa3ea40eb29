"""Logging to stdout, one line of JSON per event.

Code logs through the standard library, as uvicorn and other libraries do; one formatter writes all records alike. Until
`configure` is called nothing is set up, so that programs that import Lathe keep their own logging.
"""

import json
import logging
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

import orjson

LONG_LINE_SECONDS = 0.1
"""Seconds to wait for the reader within a line that is too long to be written at once."""

RECORD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
"""Attributes of every log record; others are a record's `extra`."""

CONTEXT: ContextVar[dict[str, Any]] = ContextVar("context", default={})  # noqa: B039 - never changed, only replaced


def configure(level: str) -> None:
    """Write this process's logs to stdout as JSON lines. `level` is the lowest level of the service's own logs.

    Those of other libraries are written from warning on, since below that some libraries quote addresses and headers.
    The root logger's handlers are replaced. A line is dropped, and counted in the next one, if whoever reads stdout
    does not: no request waits for a log.
    """
    handler = LineHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    # What the lines do not have takes a quarter of a record's time ("Optimization" in Python's logging HOWTO).
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None
    number = logging.getLevelNamesMapping()[level.upper()]
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))
    logging.getLogger("lathe.service").setLevel(number)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add fields, such as a request's id, to all lines that are logged in the block.

    That includes lines of tasks and threads that the block starts.
    """
    token = CONTEXT.set(CONTEXT.get() | fields)
    try:
        yield
    finally:
        CONTEXT.reset(token)


def log_event(logger: logging.Logger, level: int, event: str, fields: dict[str, Any]) -> None:
    """Log an event of an enabled level, with fields as its `extra`.

    Where the handler of `configure` alone would get it, no record is made: that takes as long as the line.
    """
    holder: logging.Logger | None = logger
    while holder is not None and holder.propagate and not holder.handlers:
        holder = holder.parent
    if holder is logging.root and len(holder.handlers) == 1 and isinstance(handler := holder.handlers[0], LineHandler):
        with suppress(Exception), handler.lock:  # type: ignore[union-attr]  # every handler has one
            handler.write_line(_format_line(time.time(), logging.getLevelName(level), logger.name, event, fields))
            return
    logger.log(level, event, extra=fields)  # this also reports what went wrong above


class LineHandler(logging.Handler):
    """Handler that writes lines to a stream only while that takes them at once.

    A full pipe, which nobody reads, would stop the thread that logs, which is the event loop for most lines.

    Attributes:
        dropped: number of lines that were dropped since the last that was written.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self.stream = stream
        self.dropped = 0
        self.in_line = False  # whether only the beginning of the last line was written
        self.writable = select.poll()
        try:
            self.descriptor: int | None = stream.fileno()
            self.writable.register(self.descriptor, select.POLLOUT)
        except (OSError, ValueError):  # a stream in memory
            self.descriptor = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a log record as a line, or drop and count it if the stream does not take it at once.

        If lines were dropped before, a line with their number is written first.
        """
        try:
            self.write_line(self.format(record))
        except Exception:
            self.handleError(record)

    def write_line(self, line: str) -> None:
        """Write a line as `emit` does. The handler's lock must be held."""
        if self.dropped:
            line = f"{self._build_notice()}\n{line}"
        if self._write(f"{line}\n"):
            self.dropped = 0
        else:
            self.dropped += 1

    def _build_notice(self) -> str:
        notice = f"{self.dropped:,} lines of this log were dropped, because nobody read them"
        return self.format(logging.makeLogRecord({"name": __name__, "levelname": "WARNING", "msg": notice}))

    def _write(self, text: str) -> bool:
        """Write a text to the stream, and return whether all of it was written in time."""
        if self.descriptor is None:
            self.stream.write(text)
            return True
        if self.in_line:
            text = f"\n{text}"
        content = memoryview(text.encode("utf-8", "backslashreplace"))
        seconds = 0.0
        while content:
            if not self.writable.poll(seconds * 1000):
                return False
            self.in_line = True
            # A pipe that can be written to takes so much without a wait.
            content = content[os.write(self.descriptor, content[: select.PIPE_BUF]) :]
            seconds = LONG_LINE_SECONDS
        self.in_line = False
        return True


class JsonFormatter(logging.Formatter):
    """Formatter of a record as one line of JSON.

    The line has time, level, logger and message, then the record's context and its `extra`.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line of JSON. A traceback is in the field `exception`."""
        fields = {name: value for name, value in vars(record).items() if name not in RECORD_FIELDS}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return _format_line(record.created, record.levelname, record.name, record.getMessage(), fields)


def _format_line(seconds: float, level: str, logger: str, message: str, fields: dict[str, Any]) -> str:
    """Return a log event as one line of JSON. What JSON lacks is written as Python's `repr`."""
    timestamp = datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
    event = {"timestamp": timestamp, "level": level.lower(), "logger": logger, "event": message}
    event |= CONTEXT.get() | fields
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:  # a path that is not UTF-8, or a number over 64 bits: `json` escapes and writes them
        return json.dumps(event, default=repr)
