"""What goes wrong in background threads, none of which may end: others would wait for their work forever."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from lathe.training.errors import locate_error

log = logging.getLogger(__name__)


class ThreadProblem:
    """The last unexpected exception in the work of a background thread.

    Args:
        work: what the thread does, as the subject of a sentence, such as "checking the state folder".

    Attributes:
        message: sentence for warnings; None if the work succeeded since.
    """

    def __init__(self, work: str) -> None:
        self.work = work
        self.message: str | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Catch any exception of the block, set `message` to a sentence about it, and log new ones.

        If the block succeeds, clear `message`.
        """
        try:
            yield
        except Exception as error:
            self.record(error)
        else:
            self.message = None

    def record(self, error: Exception) -> None:
        """Set `message` to a sentence that says where the exception was raised.

        The message is logged unless it equals the message before.
        """
        message = f"{self.work} failed: an unexpected {locate_error(error)}"
        if message != self.message:
            log.error(message, extra={"frames": "".join(traceback.format_tb(error.__traceback__))})
        self.message = message
