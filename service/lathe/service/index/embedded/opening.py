"""Opening of the serving generation of an index, from its snapshot or from the record."""

import logging
import shutil
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from lathe.service.index.embedded.generation import Generation
from lathe.service.index.embedded.snapshot import restore_snapshot

REBUILT = "rows and graph were rebuilt from the record"
"""End of the note that says what was done."""

log = logging.getLogger(__name__)


def open_generation(
    index: str, folder: Path, create: Callable[[], Generation]
) -> tuple[Generation, dict[str, Any] | None]:
    """Open a generation: restore its snapshot, then add later items from the record.

    If the result disagrees with the record, or the files cannot be used, the generation is rebuilt from the record.
    Its notes, which say what was rebuilt, are logged.

    Args:
        index: name of the index, for the log.
        folder: folder of the generation.
        create: returns the generation, empty, with its files open.

    Returns:
        The generation, and the description of its snapshot; None if there is none that holds its rows.
    """
    notes: list[str] | None = None
    restored: dict[str, Any] | None = None
    with ExitStack() as opened:
        try:
            generation = opened.enter_context(closing(create()))
            restored = restore_snapshot(generation)
            generation.replay()
            if generation.rows.count - generation.rows.dead != generation.record.count_items()["count"]:
                notes = [*generation.notes, f"snapshot and record disagreed: {REBUILT}"]
        except OSError as error:
            notes = [f"{Path(error.filename or folder).name}: {error.strerror}; {REBUILT}"]
        if notes is not None:
            restored = None
            opened.close()
            shutil.rmtree(folder, ignore_errors=True)
            generation = opened.enter_context(closing(create()))
            generation.notes = notes
            generation.replay()
        opened.pop_all()
    for note in generation.notes:
        log.warning("index %s: %s", index, note)
    return generation, restored
