"""Prompts: text files whose placeholders are written $name; $$ is a dollar sign."""

import string
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from training.digests import digest
from training.errors import JobError
from training.synthesis.job import STAGES, StageName, SynthesisJob

SHIPPED = Path(__file__).parent / "templates"
REQUIRED: Mapping[StageName, tuple[str, ...]] = {
    "personas": ("question", "answer"),
    "queries": ("persona",),
    "filter": ("query",),
    "documents": ("query",),
}
"""What a prompt must mention: without it every call would be the same."""
ALLOWED: Mapping[StageName, tuple[str, ...]] = {
    "personas": ("context", "count"),
    "queries": ("count",),
    "filter": ("persona",),
    "documents": ("persona",),
}
"""What it may mention besides. `count` is required where more than one is wanted."""


@dataclass(frozen=True)
class Prompt:
    """A template that was checked."""

    text: str

    @property
    def hash(self) -> str:
        """What tells it from others."""
        return digest(self.text)[:16]

    def fill(self, **values: object) -> str:
        """The prompt with its values; those it does not mention are left out."""
        return string.Template(self.text).substitute(values).strip()


def read_templates(job: SynthesisJob) -> dict[StageName, Prompt]:
    """The prompts of a job.

    Raises:
        JobError: for a folder that is not there or has files of other names, a file that is no text, or a template
            without a placeholder it needs or with one nobody fills.
    """
    folder = job.templates.folder if job.templates else SHIPPED
    if not folder.is_dir():
        raise JobError(f"there is no folder {folder}")
    known = [file_of(name) for name in STAGES]
    odd = sorted(path.name for path in folder.glob("*.txt") if path.name not in known)
    if odd:
        raise JobError(f"{folder.name} has a template {odd[0]} that nothing asks with; there are {', '.join(known)}")
    wanted = {"personas": job.personas, "queries": job.queries}
    return {name: read_template(folder, name, wanted.get(name, 1)) for name in STAGES}


def read_template(folder: Path, name: StageName, count: int) -> Prompt:
    """One prompt, the shipped one where the folder has none.

    Raises:
        JobError: likewise.
    """
    path = folder / file_of(name)
    path = path if path.is_file() else SHIPPED / path.name
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise JobError(f"the template {path.name} is not UTF-8: {error}") from error
    template = string.Template(text)
    if not template.is_valid():
        raise JobError(f"the template {path.name} has a $ that names nothing; write $$ for a dollar sign")
    needed = (*REQUIRED[name], *(("count",) if count > 1 else ()))
    found, fillable = template.get_identifiers(), (*REQUIRED[name], *ALLOWED[name])
    for placeholder in needed:
        if placeholder not in found:
            raise JobError(f"the template {path.name} lacks its placeholder ${placeholder}")
    for placeholder in found:
        if placeholder not in fillable:
            there = ", ".join(f"${one}" for one in fillable)
            raise JobError(
                f"the template {path.name} has an unknown placeholder ${placeholder}; there are {there}, and $$ is a "
                "dollar sign"
            )
    return Prompt(text)


def file_of(name: StageName) -> str:
    """What a stage's template is called."""
    return f"{name}.txt"


def write_templates(folder: Path) -> list[Path]:
    """Copy the shipped templates to be edited.

    Raises:
        JobError: if one is there already.
    """
    places = [folder / file_of(name) for name in STAGES]
    taken = next((place for place in places if place.exists()), None)
    if taken is not None:
        raise JobError(f"{taken} exists already; templates are never overwritten")
    folder.mkdir(parents=True, exist_ok=True)
    for place in places:
        place.write_bytes((SHIPPED / place.name).read_bytes())
    return places
