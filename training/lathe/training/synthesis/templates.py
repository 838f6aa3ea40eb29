"""Prompt templates: text files with placeholders such as $query. A dollar sign is written $$."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lathe.training.errors import JobError
from lathe.training.synthesis.job import STAGES, StageName, SynthesisJob
from lathe.training.workspace import digest

FULL = Path(__file__).parent / "templates"
"""Folder of the shipped templates."""
SHIPPED: Mapping[str, Path] = {"full": FULL, "short": FULL / "short"}
"""Folders of the shipped templates: full templates, and short templates for small models."""
REQUIRED: Mapping[StageName, tuple[str, ...]] = {
    "personas": ("question", "answer"),
    "queries": ("persona",),
    "filter": ("query",),
    "documents": ("query",),
}
"""Placeholders that a stage's template must use. Without them, all calls of the stage would be the same."""
SEED = ("question", "answer", "context")
"""Placeholders of the seed."""
ALLOWED: Mapping[StageName, tuple[str, ...]] = {
    "personas": (*SEED, "count"),
    "queries": (*SEED, "persona", "count"),
    "filter": (*SEED, "persona", "query"),
    "documents": (*SEED, "persona", "query"),
}
"""Placeholders that a stage's template may use; `count` is required for more than one item."""


@dataclass(frozen=True)
class Prompt:
    """Prompt template whose placeholders have been checked."""

    text: str

    @property
    def hash(self) -> str:
        """Digest of the template's text, as 16 hexadecimal digits."""
        return digest(self.text)[:16]

    def fill(self, **values: object) -> str:
        """Replace the placeholders of the template by the values, and strip the result. Further values are ignored.

        Raises:
            KeyError: if a placeholder has no value.
        """
        return string.Template(self.text).substitute(values).strip()


def read_templates(job: SynthesisJob) -> dict[StageName, Prompt]:
    """Read and check the prompt template of every stage. Raise `JobError` for missing or unknown placeholders.

    Missing templates are read from the shipped folder. A folder with a .txt file that belongs to no stage is refused.

    Raises:
        JobError: if the folder is missing or has a further .txt file, or a template is not UTF-8 or has wrong
            placeholders.
    """
    shipped = SHIPPED[job.templates.shipped]
    folder = job.templates.folder or shipped
    if not folder.is_dir():
        raise JobError(f"there is no folder {folder}")

    known = [f"{name}.txt" for name in STAGES]
    unknown = sorted(path.name for path in folder.glob("*.txt") if path.name not in known)
    if unknown:
        raise JobError(
            f"{folder.name} has a template {unknown[0]} that no stage uses; templates are {', '.join(known)}"
        )

    items = {"personas": job.personas, "queries": job.queries}
    paths = {name: folder / f"{name}.txt" for name in STAGES}
    existing = {name: path if path.is_file() else shipped / path.name for name, path in paths.items()}

    return {name: _read_template(path, name, items.get(name, 1)) for name, path in existing.items()}


def _read_template(path: Path, name: StageName, count: int) -> Prompt:
    """Read and check the prompt template of one stage. A missing or unknown placeholder raises.

    If `count` is 2 or more, the template must use `$count`.

    Raises:
        JobError: if the template is not UTF-8, lacks a required placeholder, or has an unknown placeholder.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise JobError(f"the template {path.name} is not UTF-8: {error}") from error

    template = string.Template(text)
    if not template.is_valid():
        raise JobError(f"the template {path.name} has a $ without a name; write $$ for a dollar sign")

    # A template for several items must say how many items.
    needed = (*REQUIRED[name], *(("count",) if count > 1 else ()))
    placeholders, fillable = template.get_identifiers(), ALLOWED[name]
    for placeholder in needed:
        if placeholder not in placeholders:
            raise JobError(f"the template {path.name} lacks the placeholder ${placeholder}")

    for placeholder in placeholders:
        if placeholder not in fillable:
            allowed = ", ".join(f"${known}" for known in fillable)
            raise JobError(
                f"the template {path.name} has an unknown placeholder ${placeholder}; there are {allowed}, and $$ is a "
                "dollar sign"
            )

    return Prompt(text)


def write_templates(folder: Path) -> list[Path]:
    """Copy the full shipped templates to a folder, and return the paths. Raise `JobError` if a file exists already.

    The folder is created if needed. If a file exists already, nothing is copied.
    """
    paths = [folder / f"{name}.txt" for name in STAGES]
    # Checked before the first copy, so that either all templates are copied or none.
    existing = next((path for path in paths if path.exists()), None)
    if existing is not None:
        raise JobError(f"{existing} exists already and is not overwritten; name another folder")

    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        path.write_bytes((FULL / path.name).read_bytes())

    return paths
