import pytest

from benchmarks.held_out import read_held_out, require_not_held_out


def test_held_out_list_has_twelve_entries():
    listed = read_held_out()
    assert len(listed) == 12
    assert all(path.count("/") == 1 for path in listed)


def test_require_not_held_out_refuses_a_held_out_data_set_by_name():
    require_not_held_out(["finance/fiqa_qa"])
    with pytest.raises(ValueError, match="finance/tatqa: set aside"):
        require_not_held_out(["finance/fiqa_qa", "finance/tatqa"])
