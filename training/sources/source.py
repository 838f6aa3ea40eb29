"""Where texts and vectors come from, read in batches so that no source has to fit in memory."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Literal

from training.errors import AccessError, EmptyError, SourceError
from training.sources.bad_shards import BadShards
from training.sources.file_keys import file_key
from training.sources.kinds import Batch, Kind, checked, in_words, kind_of
from training.sources.local import list_local, shown
from training.sources.raw import RawBatch, Span
from training.sources.readers import BUILT_IN, FORMATS, file_format, first_kind, read_rows
from training.sources.remote import is_remote, list_remote
from training.sources.shards import BATCH_ROWS, Shard, at_hand, contents, looked_at


@dataclass(frozen=True)
class Plan:
    """What of a source is to be read.

    Attributes:
        shards: in the order of the source.
        empty: names of files without a row.
        left_out: damaged files, and why.
    """

    shards: list[Shard] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """Texts or vectors, by what a user wrote.

    `file.jsonl[.gz]` (field `text`, or `#field`), `file.txt[.gz]` (a text a line),
    `file.parquet#column`, `file.npy` (vectors), `file.hdf5[#dataset]` as ann-benchmarks writes them,
    `file.faiss` (a flat index), a folder of these, either of both at a URL that fsspec knows
    (`s3://bucket/folder/#field`), `pydoc:` (docstrings of the Python installation) and `pydoc:topics`
    (its language reference). A field that holds lists of numbers makes it a source of vectors. ROOT/./PATH is a path
    that no link may lead out of ROOT.

    Attributes:
        written: what the user wrote.
        field: of the rows.
        files: paths, URLs or the name of a built-in source, in order.
        bad_shards: whether a damaged file stops an encoding or is left out of it.
    """

    written: str
    field: str
    files: tuple[str, ...]
    bad_shards: BadShards = "refuse"

    @property
    def place(self) -> str:
        """The file or folder, without the field; the same however it is written."""
        if self.written in BUILT_IN:
            return self.written
        place = self.written.partition("#")[0]
        if is_remote(place):
            return place.rstrip("/")
        path = Path(place).expanduser()
        return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())

    @property
    def name(self) -> str:
        """How provenance calls it: no folder of the machine it was read on."""
        return self.written if self.written in BUILT_IN else PurePosixPath(self.place).name

    def name_of(self, file: str) -> str:
        """How warnings call one of its files: without the folder that is the source."""
        return self.below(file) or self.name

    @property
    def is_folder(self) -> bool:
        """Whether files may join it."""
        return bool(self.below(self.files[0]))

    def below(self, file: str) -> str:
        """Where one of its files lies in its folder; empty if it is the source itself."""
        inside = file if is_remote(file) or file in BUILT_IN else str(Path(file).parent.resolve() / Path(file).name)
        return "/".join(PurePosixPath(inside).parts[len(PurePosixPath(self.place).parts) :])

    def batches(self, rows: int = BATCH_ROWS) -> Iterator[Batch]:
        """All rows in order, a folder's files in the order of their names.

        Raises:
            SourceError: for what cannot be read, with file and row; for texts mixed with vectors;
                for vectors that are not finite or not of one width.
        """
        kind: Kind = None
        begun = False
        for raw in self.raw_batches(rows):
            if not begun:
                kind, begun = kind_of(raw), True
            yield checked(raw, kind)

    def raw_batches(self, rows: int) -> Iterator[RawBatch]:
        """Rows as they are read."""
        for file in self.files:
            with at_hand(file) as path:
                yield from read_rows(path, self.field, rows)

    def width(self, by_header: bool = False) -> Kind:
        """What it holds, by its first row: None is texts, a number vectors of that width.

        Where damaged files are left out all are looked at, and if they differ it is what most rows are.

        Args:
            by_header: as of `first_kind`.

        Raises:
            SourceError: if it holds nothing, or cannot be read.
        """
        if self.written in BUILT_IN:  # reading those takes seconds
            return None
        kinds: set[Kind] = set()
        left_out: dict[str, str] = {}
        for file in self.files:
            try:
                with looked_at(file) as found:
                    kinds.add(first_kind(found, self.field, by_header))
            except EmptyError:
                continue
            except SourceError as error:
                self.leave_out(file, error, left_out)
                continue
            if self.bad_shards == "refuse":
                break
        if not kinds:
            raise self.nothing(left_out)
        return kinds.pop() if len(kinds) == 1 else self.plan().shards[0].width

    def kind(self) -> Literal["texts", "vectors"]:
        """What it holds, by its header or its first row; see `width`. Servers ask this, so no large row is read."""
        return "texts" if self.width(by_header=True) is None else "vectors"

    def count(self) -> int:
        """Rows in all; for text files one quick pass."""
        return sum(span.rows or 0 for file in self.files for span in contents(file, self.field)[0])

    def plan(self, damaged: Mapping[str, str] = MappingProxyType({})) -> Plan:
        """Its shards; all rows are counted for that, text files in one quick pass.

        Args:
            damaged: names of files that are known to be, and why.

        Raises:
            SourceError: for damage that shows already, and for a file unlike the others, unless such are left out; if
                nothing is left.
        """
        plan = Plan(left_out=dict(damaged))
        found: dict[str, tuple[list[Span], Kind]] = {}
        for file in self.files:
            if self.name_of(file) in damaged:
                continue
            try:
                spans, kind = contents(file, self.field)
            except SourceError as error:
                self.leave_out(file, error, plan.left_out)
                continue
            if spans:
                found[file] = spans, kind
            else:
                plan.empty.append(self.name_of(file))
        if not found:
            raise self.nothing(plan.left_out)
        most = kind_of_most(found.values())
        for file, (spans, kind) in found.items():
            if kind == most:
                key = file_key(file)
                plan.shards.extend(Shard(file=file, key=key, width=kind, **asdict(span)) for span in spans)
            else:
                words = f"{self.name_of(file)}: {in_words(kind)} in a source of {in_words(most)}"
                self.leave_out(file, SourceError(words), plan.left_out)
        return plan

    def leave_out(self, file: str, error: SourceError, left_out: dict[str, str]) -> None:
        """Note a damaged file; raise its error where that is to stop, or no file is to blame."""
        if self.bad_shards == "refuse" or isinstance(error, AccessError):
            raise error
        name = self.name_of(file)
        said = str(error).replace(f"{Path(file).parent}/", "")
        left_out[name] = said.removeprefix(f"{name}: ").removeprefix(f"{PurePosixPath(name).name}: ")

    def nothing(self, left_out: Mapping[str, str]) -> SourceError:
        """The error of a source in which nothing can be used."""
        for name, reason in left_out.items():
            return SourceError(f"no file of {self.name} can be used; the first is {name}: {reason}")
        return SourceError(f"the source {shown(self.written)!r} is empty")


def kind_of_most(contents: Iterable[tuple[list[Span], Kind]]) -> Kind:
    """What most rows of some files are; of as many, what came first."""
    rows: Counter[Kind] = Counter()
    for spans, kind in contents:
        rows[kind] += sum(span.rows or 0 for span in spans)
    return rows.most_common(1)[0][0]


def open_source(written: str, bad_shards: BadShards = "refuse") -> Source:
    """The source a user names; nothing is read yet, but of a folder elsewhere the names of its files.

    Raises:
        SourceError: if there is no such file, no format is known for it, or it cannot be got at.
    """
    if written in BUILT_IN:
        return Source(written, "", (written,), bad_shards)
    place, _, field = written.partition("#")
    is_folder, found = list_remote(place) if is_remote(place) else list_local(place)
    files = tuple(file for file in found if file_format(file))
    if not files:
        what = f"the folder {shown(place)} holds none of" if is_folder else f"{shown(place)} is none of"
        raise SourceError(f"{what} {', '.join(FORMATS)}")
    return Source(written, field or "text", files, bad_shards)
