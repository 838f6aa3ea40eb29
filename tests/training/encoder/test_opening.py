import logging
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.opening import STORE_TEXTS, StoredEncoder, open_encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER, StoreSettings, VectorStores
from lathe.training.encoder.vector_database import FILE_NAME, VectorDatabase
from lathe.training.errors import EncoderError, TooLongError

TEXTS = [f"This is sentence number {number}." for number in range(20)]


@pytest.fixture(scope="module")
def model():
    return Encoder(DEFAULT_ENCODER, "cpu")


@pytest.fixture
def stored(model, tmp_path):
    return StoredEncoder(model, VectorDatabase(StoreSettings(tmp_path)))


@pytest.fixture
def encoded(model, monkeypatch):
    """Record the texts that the model encodes."""
    texts, encode = [], model.encode

    def record(batch, *args, **options):
        texts.extend(batch)
        return encode(batch, *args, **options)

    monkeypatch.setattr(model, "encode", record)
    return texts


def test_a_text_is_encoded_once_by_all_processes_that_share_the_file(model, stored, encoded, tmp_path):
    expected = stored.encode(TEXTS[:15])
    assert encoded == TEXTS[:15]
    other = StoredEncoder(model, VectorDatabase(StoreSettings(tmp_path)))
    again = other.encode([*TEXTS[10:], TEXTS[12]])
    assert encoded == TEXTS
    np.testing.assert_array_equal(again.vectors[:5], expected.vectors[10:])
    np.testing.assert_array_equal(again.vectors[-1], expected.vectors[12])
    np.testing.assert_array_equal(again.tokens[:5], expected.tokens[10:])


def test_vectors_and_tokens_are_those_of_the_model(model, stored):
    for _ in range(2):
        found = stored.encode(TEXTS)
        expected = model.encode(TEXTS)
        np.testing.assert_allclose(found.vectors, expected.vectors, atol=1e-2)
        np.testing.assert_array_equal(found.tokens, expected.tokens)


@pytest.mark.parametrize(
    "options", [{"normalize": False}, {"truncation_side": "left"}, {"long_text": "mean"}, {"prompt_name": "query"}]
)
def test_what_changes_a_vector_has_a_row_of_its_own(model, stored, encoded, options, monkeypatch):
    monkeypatch.setitem(model.prompts, "query", "query: ")
    stored.encode(TEXTS[:2])
    stored.encode(TEXTS[:2], **options)
    assert encoded == [*TEXTS[:2], *TEXTS[:2]]


def test_no_text_is_in_the_file_and_only_its_owner_can_read_it(stored, tmp_path):
    stored.encode(["Quillfeather lives here."])
    files = list(tmp_path.iterdir())
    assert files and not any(b"Quillfeather" in file.read_bytes() for file in files)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o077 == 0


def test_errors_count_the_texts_that_were_given(stored):
    stored.encode(TEXTS[:3])
    with pytest.raises(TooLongError, match=r"\b3\b"):
        stored.encode([*TEXTS[:3], "word " * 2000], long_text="error")
    with pytest.raises(EncoderError, match="not one string"):
        stored.encode("one string")


@pytest.mark.parametrize("damage", ["file", "row", "disk"])
def test_a_damaged_or_full_database_costs_time_and_no_vectors(stored, model, tmp_path, damage, caplog, monkeypatch):
    expected = stored.encode(TEXTS).vectors
    if damage == "row":
        with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection, connection:
            connection.execute("UPDATE vectors SET vector = zeroblob(length(vector))")
    elif damage == "disk":
        monkeypatch.setattr(stored, "database", VectorDatabase(StoreSettings(tmp_path / "other")))
        stored.database.connection.execute("PRAGMA max_page_count = 1")
    else:
        stored.database.close()
    with caplog.at_level(logging.WARNING):
        np.testing.assert_allclose(stored.encode(TEXTS).vectors, expected, atol=1e-2)
        np.testing.assert_allclose(stored.encode(TEXTS[::-1]).vectors, expected[::-1], atol=1e-2)
    assert len(caplog.records) == (damage != "row")


def test_an_encoder_opens_without_a_database_that_cannot_be_read(tmp_path, caplog):
    (tmp_path / "encoded").mkdir()
    (tmp_path / "encoded" / FILE_NAME).write_bytes(b"no database" * 1000)
    stores = VectorStores(StoreSettings(tmp_path / "upstream"), StoreSettings(tmp_path / "encoded"))
    with caplog.at_level(logging.WARNING):
        assert isinstance(open_encoder(DEFAULT_ENCODER, "cpu", stores), Encoder)
    assert "are damaged" in caplog.text


def test_the_oldest_vectors_go_first_when_the_file_is_full(model, tmp_path, encoded):
    stored = StoredEncoder(model, VectorDatabase(StoreSettings(tmp_path, max_bytes=200_000)))
    for start in range(0, 64 * 4, 4):
        stored.encode([f"text {number}" for number in range(start, start + 4)])
    stored.encode(["the last one"])
    assert (tmp_path / FILE_NAME).stat().st_size < 600_000
    before = len(encoded)
    stored.encode(["text 255", "text 0"])
    assert encoded[before:] == ["text 0"]


def test_threads_share_an_encoder(stored, encoded):
    texts = [f"thread text {number}" for number in range(STORE_TEXTS // 8)]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: stored.encode(texts).vectors, range(4)))
    for vectors in results[1:]:
        np.testing.assert_allclose(vectors, results[0], atol=1e-2)
