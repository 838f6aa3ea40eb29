"""Suites: data sets to evaluate, and optionally encoders.

A suite is a folder of data sets (each subfolder with a `META.json`), `mteb:TASK,…` (tasks and benchmarks of mteb, from
the hub), a YAML file, or the name of a suite that comes with Lathe. A YAML file:

    title: …
    description: …
    reference: https://…
    tasks:
      - mteb: STSBenchmark                  # a task or a benchmark of mteb
      - folder: data/my_set                 # relative to this file
      - name: FinSTS                        # a data set of the hub in a layout of `lathe.training.datasets.layouts`
        task: sts
        hub: FinanceMTEB/FinSTS
        revision: 0f9c…
        split: test
        language: en
        columns: {sentence1: a, sentence2: b}   # column names of the data set by the layout's, where they differ
    encoders:                               # optional
      - model: intfloat/e5-base
        family: intfloat
        published_mean_norm: 0.8357
"""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import yaml

from lathe.training.datasets.data_set import EvaluatedDataSet
from lathe.training.datasets.folder import META, UNLABELLED, FolderDataSet, read_meta
from lathe.training.datasets.hub import HubDataSet
from lathe.training.datasets.layouts import LAYOUTS
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import EvaluationError
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.workspace import digest
from lathe.transforms.files import expand_home

SHIPPED = Path(__file__).parent / "suites"
"""Folder of the suites that come with Lathe."""
BETWEEN_NAMES = re.compile(r",(?![^()]*\))")
"""Pattern of commas between names, without those inside names such as MTEB(eng, v2)."""


@dataclass(frozen=True)
class Entry:
    """A data set of a suite.

    Attributes:
        name: name in results.
        kind: where the data set comes from.
        place: folder, repository on the hub, or name of the mteb task.
        task: layout of the data; empty for tasks of mteb.
        language: two-letter language of the texts; two languages, such as de-en, mean translations.
        revision: revision of the hub's repository.
        split: split of the hub's data set.
        columns: pairs of the layout's column name and the data set's column name.
        main_score: main metric of the task; None for the default metric.
        type: mteb's task type; empty for the type of the layout.
        subsets: subsets of the mteb task; empty for all subsets.
        splits: splits of the mteb task to evaluate on; empty for the task's default splits.
        limit: maximum number of rows that are evaluated; None for all rows.
    """

    name: str
    kind: Literal["folder", "hub", "mteb"]
    place: str
    task: str = ""
    language: str = ""
    revision: str = ""
    split: str = "test"
    columns: tuple[tuple[str, str], ...] = ()
    main_score: str | None = None
    type: str = ""
    subsets: tuple[str, ...] = ()
    splits: tuple[str, ...] = ()
    # Without a repr, the limit is not part of `digest`, which identifies the data.
    limit: int | None = field(default=None, repr=False)

    def build_data_set(self) -> EvaluatedDataSet:
        """Build the data set object of a folder or of the Hugging Face hub, without reading the data.

        Entries of kind `mteb` have no such object.
        """
        if self.kind == "folder":
            return FolderDataSet(self.name, self.task, Path(self.place), self.language)
        return HubDataSet(
            self.name, self.task, self.place, self.revision or None, self.columns, self.split, self.language
        )

    def digest(self) -> str:
        """Hash what identifies the data of the entry, so that scores with equal hashes are comparable.

        For a folder, all files are read and hashed. Otherwise the entry without the row limit and the version of mteb
        are hashed, as 32 hexadecimal digits.
        """
        if self.kind == "folder":
            return FolderDataSet(self.name, self.task, Path(self.place), self.language).digest()
        return hashlib.sha256(repr((self, version("mteb"))).encode()).hexdigest()[:32]

    @cached_property
    def key(self) -> str:
        """Key of the data set in the results log: a hash of `digest` and the row limit, computed once."""
        return digest(self.digest(), self.limit)[:32]


@dataclass(frozen=True)
class Suite:
    """Data sets to evaluate, and optionally encoders.

    Attributes:
        written: name that the user gave.
        title: title of the report.
        entries: usable data sets.
        problems: reasons why other data sets of the suite cannot be used, by name.
        encoders: encoders of the suite, with the names of their models; empty if the user must name encoders.
        reference: URL of the publication; empty without one.
    """

    written: str
    title: str
    entries: tuple[Entry, ...]
    problems: Mapping[str, str] = field(default_factory=dict)
    encoders: tuple[RequestedEncoder, ...] = ()
    reference: str = ""


def open_suite(written: str) -> Suite:
    """Open the suite of a folder, YAML file, `mteb:` and tasks, or shipped name, without its rows. Unknown names raise.

    Data sets that cannot be used are listed in `problems` of the suite.

    Args:
        written: folder, YAML file, `mteb:TASK,…`, or name of a suite that comes with Lathe. A file of the user precedes
            a suite of Lathe with the same name.

    Raises:
        EvaluationError: if there is no such suite, the suite is empty, or its file is invalid.
    """
    if written.startswith("mteb:"):
        names = [name.strip() for name in BETWEEN_NAMES.split(written.removeprefix("mteb:")) if name.strip()]
        if not names:
            raise EvaluationError("mteb: names no task; write mteb:STSBenchmark,Banking77Classification")
        return Suite(written, written, tuple(_expand_mteb_names(names)))

    path = expand_home(written)
    if path.is_dir():
        return open_folder_suite(written, path)

    # A file of the user comes before a suite of the same name that Lathe ships.
    shipped = SHIPPED / f"{written.removesuffix('.yaml')}.yaml"
    if path.is_file():
        return _read_yaml_suite(written, path)
    if "/" not in written and shipped.is_file():
        return _read_yaml_suite(written, shipped)

    known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml")))
    raise EvaluationError(f"there is no suite {written!r}: name a folder, a YAML file, mteb:TASK,… or one of {known}")


def open_folder_suite(written: str, root: Path) -> Suite:
    """Build a suite of the data sets below a folder, unusable ones listed in `problems`. An empty folder raises.

    Data sets are the folders with a META.json. Folders with JSON lines but without a META.json cannot be used. Data
    sets without anything to evaluate are left out.

    Raises:
        EvaluationError: if there is no data set.
    """
    entries, problems = [], {}
    folders = {path.parent for path in root.rglob(META)}
    # A folder with rows but without META.json is most likely a mistake, so it is named as a problem.
    data = {path.parent for pattern in ("*.jsonl", "*.jsonl.gz") for path in root.rglob(pattern)}

    for folder in sorted(folders | data):
        name = str(folder.relative_to(root)) if folder != root else folder.resolve().name
        try:
            entry = _read_folder_entry(name, folder)
        except EvaluationError as error:
            problems[name] = str(error)
        else:
            entries += [entry] if entry else []

    if not entries and not problems:
        raise EvaluationError(f"the folder {written} holds no data sets: folders with a {META} and files next to it")

    return Suite(written, root.resolve().name, tuple(entries), problems)


def _read_folder_entry(name: str, folder: Path) -> Entry | None:
    """Read a data set's META.json as an entry of the suite, None if nothing is to be evaluated. Invalid files raise.

    Raises:
        EvaluationError: if META.json is missing or invalid.
    """
    task, language = read_meta(folder)
    if task == UNLABELLED:
        return None
    if not isinstance(language, str):
        raise EvaluationError(f"{META} names the language {language!r}; it must be a string such as en or de-en")
    if not isinstance(task, str) or task not in LAYOUTS:
        raise EvaluationError(f"{META} names the task {task!r}; there are {', '.join(LAYOUTS)} and {UNLABELLED}")

    evaluated = LAYOUTS[task].choose_evaluation_task(folder, language)
    return Entry(name, "folder", str(folder), evaluated, language) if evaluated else None


def _expand_mteb_names(names: list[str]) -> Iterator[Entry]:
    """Look up names of tasks and benchmarks in mteb, and yield a suite entry for every distinct task.

    Raises:
        EvaluationError: if mteb does not know a name.
    """
    from lathe.training.evaluation.tasks import list_tasks  # seconds of import

    tasks = {task.metadata.name: task for name in names for task in list_tasks(name)}
    for name, task in tasks.items():
        yield Entry(name, "mteb", name, subsets=tuple(task.hf_subsets), splits=tuple(task.eval_splits))


def _read_yaml_suite(written: str, path: Path) -> Suite:
    """Read tasks, and optional title, encoders and reference, of a suite from YAML. Missing or equal tasks raise.

    Raises:
        EvaluationError: if the file cannot be read, is invalid, lists no tasks, or lists two tasks with the same name.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        parts = [_read_item(item, path.parent) for item in content.get("tasks") or []]
        encoders = tuple(
            RequestedEncoder(
                EncoderSpec(item["model"], item["model"]), item.get("family"), item.get("published_mean_norm")
            )
            for item in content.get("encoders") or []
        )
        title, reference = str(content.get("title") or path.stem), str(content.get("reference") or "")
    except EvaluationError:
        raise
    except (OSError, yaml.YAMLError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise EvaluationError(f"the suite file {path.name} cannot be read: {error!r}") from error

    entries = tuple(entry for part in parts for entry in part.entries)
    problems = {name: why for part in parts for name, why in part.problems.items()}
    if not entries and not problems:
        raise EvaluationError(f"the suite file {path.name} lists no tasks")

    names = [entry.name for entry in entries]
    repeated = next((name for name in names if names.count(name) > 1), None)
    if repeated is not None:
        raise EvaluationError(f"the suite file {path.name} has two tasks called {repeated!r}; rename one")

    return Suite(written, title, entries, problems, encoders, reference)


def _read_item(item: Mapping[str, Any], root: Path) -> Suite:
    """Parse a task of a YAML suite (`mteb`, `folder` or `hub`) as a suite without name and title. Other keys raise.

    `mteb` names a task or a benchmark, `folder` a folder relative to `root`, and `hub` a data set of the Hugging Face
    hub.

    Raises:
        EvaluationError: if the item has none of these keys, or an unknown task.
    """
    if not isinstance(item, dict):
        raise EvaluationError(f"the task {item!r} of a suite file is not a mapping; write mteb: {item}")
    if "mteb" in item:
        return Suite("", "", tuple(_expand_mteb_names([str(item["mteb"])])))
    if "folder" in item:
        return open_folder_suite(str(item["folder"]), root / str(item["folder"]))
    if "hub" not in item:
        raise EvaluationError(f"a task of a suite file has {', '.join(item)}; it must have 'mteb', 'folder' or 'hub'")

    task = str(item["task"])
    if task not in LAYOUTS:
        raise EvaluationError(f"{item.get('name')}: there is no task {task!r}; there are {', '.join(LAYOUTS)}")

    entry = Entry(
        str(item["name"]),
        "hub",
        str(item["hub"]),
        task,
        language=str(item.get("language", "en")),
        revision=str(item.get("revision", "main")),
        split=str(item.get("split", "test")),
        columns=tuple((str(ours), str(theirs)) for ours, theirs in (item.get("columns") or {}).items()),
        main_score=item.get("main_score"),
        type=str(item.get("type", "")),
    )
    return Suite("", "", (entry,))
