import json

import numpy as np
import pytest

from lathe.service.checkup.fixing import find_changes
from lathe.training.errors import EncoderError
from lathe.transforms.errors import InputError
from tests.training.checkup.words import LossyStore, WordEncoder, known, make_rows, make_texts

TEXTS = make_texts(20)
ENCODER = known(WordEncoder())


class Writable(LossyStore):
    def replace(self, changes):
        return len(changes)


def find(vectors, file, kind=Writable):
    return find_changes(kind(make_rows(vectors, TEXTS)), ENCODER, file, lambda *_: None)


def test_rows_without_a_direction_and_of_other_texts_change(tmp_path):
    vectors = ENCODER.encode(TEXTS, "document")
    vectors[1:4] = [[np.nan], [np.inf], [0]]
    vectors[4] = vectors[5]
    assert find(vectors, tmp_path / "old.jsonl") == 4
    lines = (tmp_path / "old.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in lines] == ["1", "2", "3", "4"]


def test_what_cannot_be_fixed_is_said_before_a_file_is_written(tmp_path):
    file = tmp_path / "old.jsonl"
    with pytest.raises(EncoderError, match="words gives 64 dimensions, and the rows have 63"):
        find(np.ones((20, 63)), file)
    with pytest.raises(InputError, match="cannot be replaced"):
        find(np.ones((20, 64)), file, LossyStore)
    assert not file.exists()
