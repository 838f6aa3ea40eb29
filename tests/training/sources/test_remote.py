"""Sources at URLs: fsspec's memory file system, and file systems that fail."""

import importlib.util
from pathlib import Path

import fsspec
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lathe.training.errors import AccessError, SourceError
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.shards import BATCH_ROWS
from lathe.training.sources.source import open_source
from lathe.transforms.progress import no_progress


class Failing(MemoryFileSystem):
    """Memory file system behind a network with planned failures and truncated copies."""

    protocol = "failing"
    cachable = False
    retry_waits = (0.0, 0.0)
    failures: list[Exception] = []
    cut: list[bool] = []
    fetched: list[str] = []

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("failing://", "memory://"))

    def meet(self):
        if self.failures:
            raise self.failures.pop()

    def info(self, path, **options):
        self.meet()
        return super().info(path, **options)

    def get_file(self, path, local, **options):
        self.meet()
        self.fetched.append(path)
        super().get_file(path, local, **options)
        if self.cut and self.cut.pop():
            Path(local).write_text("nothing to read")

    def open(self, path, mode="rb", **options):
        self.meet()
        return super().open(path, mode, **options)


class Resetting(Failing):
    """File system in which every read of an open file fails."""

    protocol = "resetting"

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("resetting://", "memory://"))

    def open(self, path, mode="rb", **options):
        return Reset()


class Reset:
    """File whose connection is lost."""

    def seek(self, _place, whence=0):
        return 1000 if whence else 0

    def read(self, _size):
        raise ConnectionError("reset")

    def close(self):
        pass


class Foreign(MemoryFileSystem):
    """File system whose package is not installed."""

    def __init__(self, **options):
        raise ImportError("Please install what_nobody_has")


fsspec.register_implementation("failing", Failing, clobber=True)
fsspec.register_implementation("resetting", Resetting, clobber=True)
fsspec.register_implementation("foreign", Foreign, clobber=True)


@pytest.fixture(autouse=True)
def clear_failures():
    """Remove the failures that another test planned."""
    for told in (Failing.failures, Failing.cut, Failing.fetched):
        told.clear()


@pytest.fixture
def bucket(tmp_path):
    """Write the same files to a local folder and to the memory file system, and return the local folder."""
    here = tmp_path / "here"
    (here / "day").mkdir(parents=True)
    rng = np.random.default_rng(0)
    np.save(here / "a.npy", rng.standard_normal((BATCH_ROWS + 40, 5)).astype(np.float16))
    np.save(here / "day" / "b.npy", np.asfortranarray(rng.standard_normal((60, 5))))
    table = pyarrow.table({"text": rng.standard_normal((70, 5)).astype(np.float32).tolist()})
    pyarrow.parquet.write_table(table, here / "c.parquet", row_group_size=20)
    (here / "README.md").write_text("nothing to read")
    memory = fsspec.filesystem("memory")
    if memory.exists("/bucket"):
        memory.rm("/bucket", recursive=True)
    memory.put(f"{here}/", "/bucket/", recursive=True)
    memory.pipe("/bucket/.hidden/x.npy", b"not shown")
    yield here
    memory.rm("/bucket", recursive=True)


def encode(written, folder, encoder=None, **options):
    return encode_source(open_source(written, **options), encoder, folder, no_progress)


def test_a_remote_folder_is_the_same_source_as_a_local_copy(bucket, tmp_path):
    written = "memory://bucket/"
    source, here = open_source(written), open_source(str(bucket))
    assert (source.name, source.kind(), source.count()) == ("bucket", "vectors", here.count())
    assert [source.format_file_name(file) for file in source.files] == ["a.npy", "c.parquet", "day/b.npy"]
    encoded = encode(written, tmp_path / "work")
    assert encoded.digest == encode(str(bucket), tmp_path / "other").digest
    assert not list((tmp_path / "work").rglob("fetched"))
    streamed = np.concatenate([batch.values for batch in source.batches()])
    np.testing.assert_array_equal(streamed, np.asarray(encoded.vectors))


def test_a_remote_file_with_a_field_is_a_source(bucket, counting_hashes, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/t.jsonl", b'{"body": "one"}\n\n{"body": "two"}\n')
    source = open_source("memory://bucket/t.jsonl#body")
    assert (source.name, source.kind(), source.count()) == ("t.jsonl", "texts", 2)
    encoder = counting_hashes()
    encode("memory://bucket/t.jsonl#body", tmp_path / "work", encoder)
    assert encoder.texts == ["one", "two"]


def test_only_a_changed_remote_file_is_encoded_again(counting_hashes, bucket, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe({"/bucket/texts/a.txt": b"one\n", "/bucket/texts/b.txt": b"two\n"})
    encode("memory://bucket/texts", tmp_path / "work", counting_hashes())
    memory.pipe("/bucket/texts/b.txt", b"owt\n")
    encoder = counting_hashes()
    encoded = encode("memory://bucket/texts", tmp_path / "work", encoder)
    assert encoder.texts == ["owt"]
    assert encoded.vectors.shape[0] == 2


def test_remote_files_are_fetched_one_at_a_time_and_not_again_for_finished_shards(bucket, tmp_path):
    most = 0

    def look(_fraction, _message):
        nonlocal most
        most = max(most, sum(1 for path in (tmp_path / "work").rglob("fetched/*") if path.is_file()))

    encode_source(open_source("failing://bucket"), None, tmp_path / "work", look)
    assert most == 1 and len(Failing.fetched) == 3
    encode("failing://bucket", tmp_path / "work")
    assert len(Failing.fetched) == 3


def test_a_damaged_remote_file_is_refused_or_skipped_by_bad_shards(bucket, tmp_path):
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket/b.npy", (bucket / "a.npy").read_bytes()[:-10])
    with pytest.raises(SourceError, match=r"b\.npy is not a \.npy file that can be read.*truncated"):
        encode("memory://bucket", tmp_path / "work")
    encoded = encode("memory://bucket", tmp_path / "work", bad_shards="skip")
    assert list(encoded.left_out) == ["b.npy"]


def test_a_remote_source_is_retried_after_two_network_failures(bucket, tmp_path):
    source = open_source("failing://bucket")
    for step in (source.kind, source.plan, lambda: encode_source(source, None, tmp_path / "work", no_progress)):
        Failing.failures[:] = [ConnectionError("reset")] * 2
        step()
        assert Failing.failures == []


@pytest.mark.parametrize("policy", ["refuse", "skip"])
def test_a_remote_source_that_fails_three_times_raises_access_error_and_is_not_skipped(bucket, tmp_path, policy):
    source = open_source("failing://bucket", policy)
    Failing.failures[:] = [TimeoutError("too slow")] * 100
    with pytest.raises(AccessError, match=r"failing://.*/bucket/a\.npy cannot be reached, tried 3 times: too slow"):
        encode_source(source, None, tmp_path / "work", no_progress)
    assert len(Failing.failures) == 97


def test_refused_credentials_raise_access_error_without_a_retry(bucket):
    Failing.failures[:] = [PermissionError("Forbidden")] * 100
    with pytest.raises(AccessError, match="credentials are missing, or refused: Forbidden"):
        open_source("failing://bucket")
    assert len(Failing.failures) == 99


def test_remote_files_that_are_missing_or_of_unknown_formats_are_refused(bucket):
    fsspec.filesystem("memory").pipe("/bucket/notes/a.md", b"#")
    for written, reason in (
        ("bucket/notes", r"the folder memory://bucket/notes has no file of a known format; allowed are \.jsonl"),
        ("bucket/notes/a.md", r"memory://bucket/notes/a\.md is not of a known format; allowed are \.jsonl"),
        ("bucket/nothing.npy", "there is no file or folder memory://bucket/nothing.npy"),
        ("no-bucket/", "there is no file or folder memory://no-bucket/"),
    ):
        with pytest.raises(SourceError, match=reason):
            open_source(f"memory://{written}")


def test_an_unknown_protocol_and_a_missing_package_raise_access_error():
    with pytest.raises(AccessError, match="nobody://x/y.npy cannot be read: Protocol not known"):
        open_source("nobody://x/y.npy")
    with pytest.raises(AccessError, match="foreign:// needs a package that is not installed: .*what_nobody_has"):
        open_source("foreign://x/y.npy")


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is not None, reason="s3fs is there")
def test_an_s3_source_without_s3fs_raises_access_error_that_names_the_package():
    with pytest.raises(AccessError, match="reading s3:// needs a package that is not installed: pip install s3fs"):
        open_source("s3://bucket/folder/")


def test_an_incomplete_copy_of_a_remote_file_is_fetched_again(bucket, tmp_path):
    Failing.cut[:] = [True]
    assert encode("failing://bucket/a.npy", tmp_path / "work").vectors.shape == (BATCH_ROWS + 40, 5)
    assert Failing.cut == [] and len(Failing.fetched) == 2
