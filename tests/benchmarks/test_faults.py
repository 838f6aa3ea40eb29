"""The planted faults fit the code as it is now; planting them takes minutes and is done by `benchmarks.faults`."""

import pytest

from benchmarks.faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.area)
def test_each_fault_matches_the_code_once_and_names_existing_test_files(fault):
    code = (ROOT / fault.path).read_text()
    assert code.count(fault.right) == 1
    assert fault.wrong != fault.right
    assert all((ROOT / name).exists() for name in fault.tests.split())


def test_fault_areas_are_unique():
    assert len({fault.area for fault in FAULTS}) == len(FAULTS)
