import pytest

from benchmarks.held_out import require_not_held_out


def test_require_not_held_out_refuses_a_held_out_data_set_by_name():
    require_not_held_out(["finance/fiqa_qa"])
    with pytest.raises(ValueError, match="finance/tatqa: set aside"):
        require_not_held_out(["finance/fiqa_qa", "finance/tatqa"])
