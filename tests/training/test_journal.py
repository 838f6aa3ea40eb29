import os
import subprocess
import sys
from dataclasses import asdict, dataclass

import orjson
import pytest

from lathe.training.errors import JobError
from lathe.training.journal import Journal, find_changed_setting

SETTINGS = {"method": "reze", "seeds": (1, 2), "training": {"rate": 0.1, "lora": {"rank": 8}}, "evaluate": None}
WRITER = """
import os, sys
from pathlib import Path
from lathe.training.journal import Journal

journal = Journal(Path(sys.argv[1]), dict)
for number in range(int(sys.argv[2])):
    journal.append([{"number": number, "text": "x" * 20_000}])
print("written", flush=True)
if sys.argv[3:]:
    with journal.path.open("ab") as file:
        file.write(b'{"number": 3, "te')
        file.flush()
        sys.stdin.read()
"""


@dataclass(frozen=True)
class Entry:
    name: str
    value: float | None = None


@pytest.fixture
def journal(tmp_path):
    """Return a journal of two entries, in a folder that it created."""
    made = Journal(tmp_path / "new" / "folder" / "log.jsonl", Entry)
    made.append([Entry("ß\n"), Entry("b", 0.1 + 0.2)])
    return made


@pytest.fixture
def start(tmp_path):
    """Return a function that starts another process that writes a journal."""
    started = []

    def run(path, count, *more):
        command = [sys.executable, "-P", "-c", WRITER, str(path), str(count), *more]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_journal_reads_entries_in_order_with_equal_values(journal):
    journal.append([])
    journal.append(iter([Entry("c")]))
    assert Journal(journal.path, Entry).read() == [Entry("ß\n"), Entry("b", 0.1 + 0.2), Entry("c")]
    assert [orjson.loads(line) for line in journal.path.read_bytes().splitlines()] == [
        asdict(entry) for entry in journal.read()
    ]


def test_an_incomplete_last_line_is_not_read_and_the_next_append_removes_it(journal):
    """A last line that lacks only its newline is kept."""
    whole = journal.path.read_bytes()
    for size in range(whole.index(b"\n") + 1, len(whole)):
        journal.path.write_bytes(whole[:size])
        again = Journal(journal.path, Entry, strict=True)
        kept = [Entry("ß\n"), Entry("b", 0.1 + 0.2)][: 2 if size == len(whole) - 1 else 1]  # only its newline is lost
        assert again.read() == kept and journal.path.read_bytes() == whole[:size]
        again.append([Entry("c")])
        assert again.read() == [*kept, Entry("c")]
        assert all(orjson.loads(line) for line in journal.path.read_bytes().splitlines())


def test_a_damaged_line_is_skipped_or_named_in_an_error_if_strict(journal):
    content = journal.path.read_bytes()
    for line in (b"5", b"[]", b'{"value": 1}', b'{"unknown": 1}', b"null", b"\xff", b"", b'{"na'):
        journal.path.write_bytes(line + b"\n" + content)
        assert journal.read() == [Entry("ß\n"), Entry("b", 0.1 + 0.2)]
        with pytest.raises(JobError, match=r"log.jsonl line 1 is damaged; remove the line"):
            Journal(journal.path, Entry, strict=True).read()


def test_replace_replaces_all_entries_and_leaves_no_other_file(journal):
    journal.replace(entry for entry in journal.read() if entry.name == "b")
    assert journal.read() == [Entry("b", 0.1 + 0.2)]
    assert [path.name for path in journal.path.parent.iterdir()] == ["log.jsonl"]


def test_append_refuses_a_symbolic_link(journal, tmp_path):
    (tmp_path / "link.jsonl").symlink_to(journal.path)
    before = journal.path.read_bytes()
    with pytest.raises(OSError, match="link"):
        Journal(tmp_path / "link.jsonl", Entry).append([Entry("c")])
    assert journal.path.read_bytes() == before


def test_a_journal_read_while_another_process_writes_has_only_whole_entries(tmp_path, start):
    journal, seen = Journal(tmp_path / "log.jsonl", dict), [0]
    process = start(journal.path, 50)
    while process.poll() is None:
        entries = journal.read()
        assert [entry["number"] for entry in entries] == list(range(len(entries)))
        assert all(len(entry["text"]) == 20_000 for entry in entries)
        seen.append(len(entries))
    assert process.returncode == 0 and len(journal.read()) == 50 and seen == sorted(seen)


@pytest.fixture
def record(tmp_path):
    """Write a job's settings to a file as a job would and return its path."""
    path = tmp_path / "job.json"
    path.write_bytes(orjson.dumps(SETTINGS | {"base": {"name": "tiny", "length": 16}}, option=orjson.OPT_INDENT_2))
    return path


def test_find_changed_setting_returns_none_for_equal_settings_and_without_a_record(record, tmp_path):
    assert find_changed_setting(record, SETTINGS) is None
    assert find_changed_setting(record, {"base.length": 16, "of a later version": None}) is None
    assert find_changed_setting(tmp_path / "none.json", SETTINGS) is None


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"method": "pft"}, "method"),
        ({"seeds": [1]}, "seeds"),
        ({"training": {"rate": 0.1, "lora": {"rank": 4}}}, "training.lora.rank"),
        ({"training": {"lora": {"rank": 8}}}, "training.rate"),
        ({"training": {"rate": 0.1, "lora": {"rank": 8}, "more": None}}, "training.more"),
        ({"base.length": 8}, "base.length"),
        ({"base.name.of": "tiny"}, "base.name.of"),
        ({"of a later version": 0, "method": "reze"}, "of a later version"),
    ],
)
def test_find_changed_setting_returns_the_first_setting_that_differs(record, changed, name):
    assert find_changed_setting(record, SETTINGS | changed) == name


def test_find_changed_setting_refuses_a_damaged_record(record):
    for payload in (b"[]", b'{"method": "re'):
        record.write_bytes(payload)
        with pytest.raises(JobError, match=r"job.json is not a JSON object, so it is damaged; name another folder"):
            find_changed_setting(record, SETTINGS)
