"""A text that one command encoded is not encoded by the next."""

import json

import pytest

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER, StoreSettings
from lathe.training.encoder.vector_database import FILE_NAME, VectorDatabase

MARK = "xylograph"


@pytest.fixture
def encoded(monkeypatch):
    """Record the texts of the source that models encode."""
    texts, encode = [], Encoder.encode

    def record(encoder, batch, *args, **options):
        texts.extend(text for text in batch if MARK in text)
        return encode(encoder, batch, *args, **options)

    monkeypatch.setattr(Encoder, "encode", record)
    return texts


@pytest.fixture
def source(tmp_path, paragraphs):
    return write_texts(tmp_path / "texts.jsonl", paragraphs[:60])


def write_texts(path, texts):
    """Write texts with the mark to a file, and return its path."""
    rows = ({"id": str(number), "text": f"{MARK} {text}"} for number, text in enumerate(texts))
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def count_stored(home):
    file = home / "encoded" / FILE_NAME
    return VectorDatabase(StoreSettings(file.parent)).count() if file.exists() else 0


def test_a_second_fit_an_import_and_lathe_embed_encode_only_new_texts(run, source, encoded, paragraphs, tmp_path):
    assert run("fit", "--name", "first", "--source", source, "--steps", "r2,pca:16")[0] == 0
    assert len(encoded) == 60
    more = write_texts(tmp_path / "more.jsonl", paragraphs[:70])
    assert run("fit", "--name", "second", "--source", more, "--steps", "mc,pca:8", "--seed", 3)[0] == 0
    assert len(encoded) == 70
    assert run("embed", "--source", source, "--chain", "second", "--out", tmp_path / "out.npy")[0] == 0
    index = ["index", "import", "--name", "notes", "--source", source, "--chain", "first"]
    status, _, err = run(*index)
    assert status == 0, err
    assert len(encoded) == 70


@pytest.mark.release
def test_zero_bytes_store_nothing_of_a_fits_texts_and_queries(run, home, source, encoded, tmp_path):
    queries = write_texts(tmp_path / "queries.jsonl", ["Quillfeather", *map(str, range(50))])
    fit = ["fit", "--name", "private", "--source", source, "--bytes", 24, "--queries", queries]
    before = count_stored(home)
    status, _, err = run(*fit, LATHE_ENCODED_BYTES=0)
    assert status == 0, err
    assert len(set(encoded)) >= 111 and count_stored(home) == before
    vector = Encoder(DEFAULT_ENCODER, "cpu").encode([f"{MARK} Quillfeather"]).vectors[0]
    needles = [b"Quillfeather", *(vector.astype(dtype)[:4].tobytes() for dtype in ("f2", "f4", "f8"))]
    files = [path for path in home.rglob("*") if path.is_file()]
    assert [path for path in files if any(needle in path.read_bytes() for needle in needles)] == []
