import json
import tracemalloc

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import FitError, NotFiniteError, SourceError
from lathe.training.fitting.encoded_shards import HASHES, POSITION, VECTORS
from lathe.training.fitting.encoding import encode_source
from lathe.training.sources.shards import BATCH_ROWS
from lathe.training.sources.source import open_source
from lathe.transforms.progress import no_progress

FILES = 4
ROWS = 3


def text(file: int, row: int) -> str:
    return f"Row {row} of file {file} speaks of {['ledgers', 'rivers', 'lathes', 'tomatoes'][file]}."


def write_texts(folder):
    """Fill a folder with files. Each will be a shard of one batch."""
    for file in range(FILES):
        (folder / f"{file}.txt").write_text("\n".join(text(file, row) for row in range(ROWS)))
    return str(folder)


@pytest.fixture(scope="module")
def folder_of_texts(tmp_path_factory):
    return write_texts(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def whole(folder_of_texts, encoder, tmp_path_factory):
    """Return the files of an encoding that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    encode(folder_of_texts, encoder, folder)
    return read_all_files(folder)


def read_all_files(folder):
    """Return the contents of all files below a folder, by relative path."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def encode(written, encoder, folder, on_progress=no_progress):
    return encode_source(open_source(written), encoder, folder, on_progress)


def write_lines(path, lines):
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines))
    return str(path)


def test_encode_source_returns_the_encoders_vectors_in_source_order(folder_of_texts, counting, encoder, tmp_path):
    encoded = encode(folder_of_texts, counting(), tmp_path / "work")
    expected = encoder.encode([text(file, row) for file in range(FILES) for row in range(ROWS)]).vectors
    np.testing.assert_allclose(encoded.vectors, expected, rtol=0, atol=1e-5)
    assert encoded.blank == 0


@pytest.mark.parametrize("call", [0, FILES - 1])
def test_a_stopped_encoding_resumes_at_the_next_batch_and_ends_with_equal_files(
    folder_of_texts, whole, counting, stopped, tmp_path, call
):
    work = tmp_path / "work"
    first, second = counting(stop_before_call=call), counting()
    with pytest.raises(stopped):
        encode(folder_of_texts, first, work)
    encode(folder_of_texts, second, work)
    assert read_all_files(work) == whole
    assert len(first.texts) == call * ROWS
    assert first.texts + second.texts == [text(file, row) for file in range(FILES) for row in range(ROWS)]


def test_a_partly_written_batch_is_removed_and_encoded_again(folder_of_texts, whole, counting, stopped, tmp_path):
    work = tmp_path / "work"
    with pytest.raises(stopped):
        encode(folder_of_texts, counting(stop_before_call=2), work)
    begun = [path for name in (VECTORS, HASHES) for path in work.rglob(name) if path.stat().st_size == 0]
    assert len(begun) == 2
    for path in begun:
        path.write_bytes(b"a part of a batch")
    second = counting()
    encode(folder_of_texts, second, work)
    assert read_all_files(work) == whole
    assert second.calls == FILES - 2


def test_only_the_changed_file_of_a_source_is_encoded_again(counting, encoder, tmp_path):
    (tmp_path / "texts").mkdir()
    folder_of_texts = write_texts(tmp_path / "texts")
    encode(folder_of_texts, counting(), tmp_path / "work")
    changed = tmp_path / "texts" / "3.txt"
    changed.write_text(changed.read_text().replace("tomatoes", "potatoes"))  # as many bytes as before
    again = counting()
    encoded = encode(folder_of_texts, again, tmp_path / "work")
    assert again.calls == 1
    np.testing.assert_allclose(
        encoded.vectors[-1], encoder.encode([text(3, ROWS - 1).replace("tomatoes", "potatoes")]).vectors[0], atol=1e-5
    )


def test_another_field_of_the_same_file_is_encoded_separately(counting_hashes, tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "a lathe", "title": "a river"}))
    one = encode(str(tmp_path / "a.jsonl"), counting_hashes(), tmp_path / "work").digest
    assert encode(f"{tmp_path}/a.jsonl#title", counting_hashes(), tmp_path / "work").digest != one


def test_another_encoder_does_not_reuse_stored_vectors(folder_of_texts, counting, counting_hashes, tmp_path):
    encode(folder_of_texts, counting(), tmp_path / "work")
    encoded = encode(folder_of_texts, counting_hashes(), tmp_path / "work")
    expected = counting_hashes().encode([text(0, 0)]).vectors[0]
    assert encoded.vectors.shape == (FILES * ROWS, len(expected))
    np.testing.assert_array_equal(encoded.vectors[0], expected)


def test_a_shard_with_a_truncated_or_missing_file_is_encoded_from_the_start(folder_of_texts, counting_hashes, tmp_path):
    work = tmp_path / "work"
    encode(folder_of_texts, counting_hashes(), work)
    before = read_all_files(work)
    for name in (VECTORS, HASHES):
        for gone in (False, True):
            damaged = sorted(work.rglob(name))[1]
            content = damaged.read_bytes()[:-1]
            damaged.unlink()
            if not gone:
                damaged.write_bytes(content)
            again = counting_hashes()
            encode(folder_of_texts, again, work)
            assert read_all_files(work) == before and again.calls == 1, (name, gone)


def test_a_shard_with_a_damaged_position_file_is_encoded_from_the_start(folder_of_texts, counting_hashes, tmp_path):
    work = tmp_path / "work"
    encode(folder_of_texts, counting_hashes(), work)
    before = read_all_files(work)
    for position in ("", "{", "[]", "null", '{"key": 1, "rows": "x", "kept": "x"}', '{"other": 1}'):
        again = counting_hashes()
        for path in work.rglob(POSITION):
            path.write_text(position)
        encode(folder_of_texts, again, work)
        assert read_all_files(work) == before and again.calls == FILES, position


def test_a_text_without_a_finite_vector_ends_the_encoding_and_is_named_by_its_row(fragile_model, tmp_path):
    """Its batch is not written. Once the text is gone, the rest is encoded."""
    fragile = Encoder(EncoderSpec("fragile", str(fragile_model), dtype="float16"))
    rows = ["tea", " ", "a bicycle", "", "a volcano", "rain"]
    path = tmp_path / "rows.jsonl"
    write_lines(path, rows)
    with pytest.raises(NotFiniteError, match=r"^row 5 of rows\.jsonl: fragile gives NaN or inf"):
        encode(str(path), fragile, tmp_path / "vectors")
    assert [file.stat().st_size for file in (tmp_path / "vectors").rglob(VECTORS)] == [0]
    write_lines(path, [row for row in rows if "volcano" not in row])
    found = encode(str(path), fragile, tmp_path / "vectors")
    assert found.vectors.shape == (3, 16) and np.isfinite(found.vectors).all()


def test_files_of_only_blank_texts_do_not_change_vectors_and_digest(counting_hashes, tmp_path):
    (tmp_path / "texts").mkdir()
    for name, lines in {"a": ["", " "], "b": ["a lathe"], "c": [""], "d": ["a river"]}.items():
        write_lines(tmp_path / "texts" / f"{name}.jsonl", lines)
    encoded = encode(str(tmp_path / "texts"), counting_hashes(), tmp_path / "work")
    plain = encode(write_lines(tmp_path / "b.jsonl", ["a lathe", "a river"]), counting_hashes(), tmp_path / "plain")
    np.testing.assert_allclose(encoded.vectors, plain.vectors, rtol=0, atol=1e-5)
    assert (encoded.blank, encoded.digest) == (3, plain.digest)


def test_texts_have_equal_hashes_exactly_if_they_are_equal(counting_hashes, tmp_path):
    texts = ["a lathe", "a river", "a lathe", "A lathe", "a river", "a lathe "]
    hashes = encode(write_lines(tmp_path / "a.jsonl", texts), counting_hashes(), tmp_path / "work").hashes
    assert [[a == b for b in hashes] for a in hashes] == [[a == b for b in texts] for a in texts]


def test_equal_vectors_have_equal_hashes_in_float16_and_float64(tmp_path):
    vectors = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float16)
    vectors[7] = vectors[3]
    np.save(tmp_path / "half.npy", vectors)
    np.save(tmp_path / "full.npy", vectors.astype(np.float64))
    half = encode(str(tmp_path / "half.npy"), None, tmp_path / "h")
    full = encode(str(tmp_path / "full.npy"), None, tmp_path / "f")
    assert half.hashes[7] == half.hashes[3]
    assert len(np.unique(half.hashes)) == 49
    assert half.digest == full.digest


def test_texts_without_an_encoder_are_refused(folder_of_texts, tmp_path):
    with pytest.raises(FitError, match="encoder"):
        encode(folder_of_texts, None, tmp_path / "work")


def test_a_source_of_only_blank_texts_or_none_is_refused(counting_hashes, tmp_path):
    with pytest.raises(SourceError, match="only blank texts"):
        encode(write_lines(tmp_path / "a.jsonl", ["", " "]), counting_hashes(), tmp_path / "work")
    (tmp_path / "a.txt").write_text("\n")
    with pytest.raises(SourceError, match="empty"):
        encode(str(tmp_path / "a.txt"), counting_hashes(), tmp_path / "work")


def test_progress_grows_to_1_and_a_resumed_encoding_starts_where_the_first_stopped(
    folder_of_texts, counting, stopped, tmp_path
):
    first: list[float] = []
    second: list[float] = []
    with pytest.raises(stopped):
        encode(folder_of_texts, counting(stop_before_call=3), tmp_path / "work", lambda done, _: first.append(done))
    encode(folder_of_texts, counting(), tmp_path / "work", lambda done, _: second.append(done))
    assert first == sorted(first) and second == sorted(second)
    assert set(first) | set(second) == {0.25, 0.5, 0.75, 1.0}
    assert not set(first) & set(second)


def test_encoding_20_000_rows_takes_the_memory_of_fewer_than_5_batches(tmp_path):
    rows, width = 20_000, 384
    np.save(tmp_path / "a.npy", np.random.default_rng(0).standard_normal((rows, width), dtype=np.float32))
    batch = BATCH_ROWS * width * 4
    tracemalloc.start()
    try:
        encode(str(tmp_path / "a.npy"), None, tmp_path / "work")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch < peak < 5 * batch < rows * width * 4 / 3
