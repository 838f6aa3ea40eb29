"""Texts, vectors and labelled data that a reader of the pages has.

They are made when a block names them. All of it is docstrings of the standard library, which are real English and
always there.
"""

import ast
import json
import sysconfig
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

from lathe.training.sources.readers import extract_paragraphs, read_docstrings
from tests.docs.workshop import Workshop

MODULES = """
turtle _pydecimal statistics pathlib argparse ast calendar cgitb cmd codecs configparser contextlib datetime difflib
doctest fractions ftplib heapq imaplib inspect ipaddress locale mailbox nntplib optparse os pickletools random shutil
smtplib socket subprocess tarfile threading trace typing unittest/case zipfile logging/__init__ asyncio/events
""".split()
"""Those that a Python lacks are left out."""

LONGEST = 160
"""Characters of a text: short ones are encoded quickly."""

ROWS = 300
LABELS = ("turtle", "typing", "_pydecimal", "logging/__init__")
SPLIT = 24
"""Rows of a data set's test, and of its training part."""

HEADER = "query-id\tcorpus-id\tscore\n"


@cache
def texts_of(module: str) -> tuple[str, ...]:
    """Return short paragraphs of one module's docstrings."""
    path = Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py"
    return (
        tuple(text for text in extract_paragraphs(read_docstrings(path)) if len(text) <= LONGEST)
        if path.exists()
        else ()
    )


@cache
def texts() -> tuple[str, ...]:
    """Return distinct texts of many modules."""
    return tuple(dict.fromkeys(text for module in MODULES for text in texts_of(module)))[:ROWS]


@cache
def named_docstrings() -> list[tuple[str, str]]:
    """Return pairs of a function's or class's dotted name and the first paragraph of its docstring, as search finds it.

    They are in an order that does not depend on what else is there, so that another Python changes few of them.
    """
    library, found = Path(sysconfig.get_paths()["stdlib"]), dict[str, str]()
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if {"site-packages", "test", "tests", "idle_test"} & set(parts) or any(part.startswith("_") for part in parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for outer in tree.body:
            for node in [outer, *(outer.body if isinstance(outer, ast.ClassDef) else [])]:
                if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                    text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
                    names = [outer.name] if node is outer else [outer.name, node.name]
                    if 40 <= len(text) <= 300:
                        found.setdefault(text, ".".join([*parts, *names]))
    return sorted(((name, text) for text, name in found.items()), key=lambda pair: sha256(pair[1].encode()).digest())


def lines(path: Path, rows: Iterable[object]) -> None:
    """Write rows as JSON lines, and create the folders above the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def labelled(start: int, count: int) -> list[dict[str, str]]:
    """Return texts labelled with their modules, alternating between the modules."""
    return [
        {"text": texts_of(label)[start + row // len(LABELS)], "label": label.partition("/")[0]}
        for row, label in zip(range(count), LABELS * count, strict=False)
    ]


def halves(start: int, count: int) -> list[dict[str, str]]:
    """Return the first halves of texts as queries and the second halves as positives."""
    cut = [text.split() for text in texts()[start : start + count]]
    return [
        {"anchor": " ".join(words[: len(words) // 2]), "positive": " ".join(words[len(words) // 2 :])} for words in cut
    ]


def classification(folder: Path, start: int = 0) -> None:
    """Write a classification data set of texts labelled by module."""
    lines(folder / "META.json", [{"task": "classification", "language": "en"}])
    lines(folder / "train.jsonl", labelled(start, 2 * SPLIT))
    lines(folder / "test.jsonl", labelled(start + SPLIT // 2, SPLIT))


def retrieval(folder: Path, start: int = 0) -> None:
    """Write a retrieval data set of first halves whose answers are the second halves."""
    pairs = halves(start, 3 * SPLIT)
    lines(folder / "META.json", [{"task": "retrieval", "language": "en"}])
    lines(folder / "corpus.jsonl", [{"_id": f"d{i}", "text": pair["positive"]} for i, pair in enumerate(pairs)])
    lines(folder / "queries.jsonl", [{"_id": f"q{i}", "text": pair["anchor"]} for i, pair in enumerate(pairs)])
    (folder / "qrels").mkdir()
    for split, rows in {"train": range(SPLIT), "test": range(SPLIT, 3 * SPLIT)}.items():
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(f"q{i}\td{i}\t1\n" for i in rows))


def sts(folder: Path, start: int = 0) -> None:
    """Write an STS data set of halves: those of one text are similar, those of two texts are not."""
    pairs = halves(start, 2 * SPLIT)
    rows = [
        {"sentence1": a["anchor"], "sentence2": (a if i % 2 else b)["positive"], "score": 1.0 + 4 * (i % 2)}
        for i, (a, b) in enumerate(zip(pairs, pairs[1:] + pairs[:1], strict=True))
    ]
    lines(folder / "META.json", [{"task": "sts", "language": "en"}])
    lines(folder / "train.jsonl", rows[:SPLIT])
    lines(folder / "test.jsonl", rows[SPLIT:])


def suite(start: int = 0) -> Callable[[Path, Workshop], None]:
    """Return a function that writes a folder of five data sets: two of classification and retrieval, one of STS."""

    def make(folder: Path, _workshop: Workshop) -> None:
        classification(folder / "modules", start // 40)
        classification(folder / "origins", start // 40 + 6)
        retrieval(folder / "halves", start)
        retrieval(folder / "endings", start + 80)
        sts(folder / "likeness", start + 160)

    return make


def json_lines(start: int, end: int) -> Callable[[Path, Workshop], None]:
    """Return a function that writes a file of texts with a year each."""
    return lambda path, _: lines(
        path, ({"text": text, "year": 2015 + row % 10} for row, text in enumerate(texts()[start:end]))
    )


def plain(path: Path, _workshop: Workshop) -> None:
    """Write one text per line."""
    path.write_text("".join(f"{text}\n" for text in texts()))


def vectors(path: Path, workshop: Workshop) -> None:
    """Write the server's embeddings of the texts: (rows, 384) float32."""
    path.write_bytes(workshop.embed(list(texts())))


SHELF: dict[str, Callable[[Path, Workshop], None]] = {
    "texts.jsonl": json_lines(0, ROWS),
    "may.jsonl": json_lines(0, 200),
    "june.jsonl": json_lines(100, ROWS),
    "sentences.txt": plain,
    "vectors.npy": vectors,
    "my-data": suite(),
    "general": suite(40),
    "my-domain": suite(),
    "documents.jsonl": lambda path, _: lines(path, ({"text": pair["positive"]} for pair in halves(0, ROWS))),
    "judged.jsonl": lambda path, _: lines(
        path, ({"query": pair["anchor"], "document": pair["positive"]} for pair in halves(0, 60))
    ),
    "docstrings.jsonl": lambda path, _: lines(path, ({"text": text} for _, text in named_docstrings()[:1200])),
    "names.jsonl": lambda path, _: lines(
        path, ({"query": name, "document": text} for name, text in named_docstrings()[:500])
    ),
    "questions.jsonl": lambda path, _: lines(path, halves(0, 80)),
    "data/tickets": lambda path, _: classification(path, 6),
    "data/finance": suite(),
}
"""Everything there is, by the name that pages call it."""


def put(text: str, folder: Path, workshop: Workshop) -> None:
    """Create the data that a block's text names and the folder lacks."""
    for name, make in SHELF.items():
        if name in text and not (folder / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            make(folder / name, workshop)
