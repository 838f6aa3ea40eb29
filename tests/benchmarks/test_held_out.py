import pytest

from benchmarks.held_out import read_held_out, require_not_held_out


def test_ten_data_sets_and_two_corpora_are_set_aside():
    listed = read_held_out()
    assert len(listed) == 12
    assert all(path.count("/") == 1 for path in listed)


def test_nothing_is_tuned_on_them():
    require_not_held_out(["finance/fiqa_qa"])
    with pytest.raises(ValueError, match="finance/tatqa: set aside"):
        require_not_held_out(["finance/fiqa_qa", "finance/tatqa"])
