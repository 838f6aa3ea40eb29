"""What the tests of several packages share."""

import gzip
import warnings
from pathlib import Path

import orjson
import pytest
import torch

from training.encoders import Encoder, locate
from training.spec import DEFAULT_ENCODER, DEFAULT_MODEL

HEADER = "query-id\tcorpus-id\tscore\n"


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real default encoder, from its offline package."""
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # importing torch and transformers warns of their own affairs
        return Encoder(DEFAULT_ENCODER)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """A folder with a random BERT of one narrow layer that reads with MiniLM's tokenizer."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(locate(DEFAULT_MODEL))
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(folder / "bert")
    tokenizer.save_pretrained(folder / "bert")
    transformer = Transformer(str(folder / "bert"), max_seq_length=32)
    SentenceTransformer(modules=[transformer, Pooling(16), Normalize()]).save(str(folder / "model"))
    return folder / "model"


def write(folder, meta=None, files=None, qrels=None):
    """A data set folder: META.json, files by their names, judgements by split."""
    folder.mkdir(parents=True, exist_ok=True)
    if meta is not None:
        (folder / "META.json").write_bytes(meta if isinstance(meta, bytes) else orjson.dumps(meta))
    for name, rows in (files or {}).items():
        payload = b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows)
        (folder / name).write_bytes(gzip.compress(payload) if name.endswith(".gz") else payload)
    for split, rows in (qrels or {}).items():
        (folder / "qrels").mkdir(exist_ok=True)
        lines = [row if isinstance(row, str) else "\t".join(map(str, row)) for row in rows]
        (folder / "qrels" / f"{split}.tsv").write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def write_data_set():
    """A writer of data set folders."""
    return write
