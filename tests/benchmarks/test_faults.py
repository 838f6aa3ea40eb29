"""The planted faults fit the code as it is now; planting them takes minutes and is done by `benchmarks.faults`."""

import pytest

from benchmarks.faults import FAULTS, ROOT


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.area)
def test_a_fault_has_one_place_in_the_code_and_tests_that_should_find_it(fault):
    code = (ROOT / fault.path).read_text()
    assert code.count(fault.right) == 1
    assert fault.wrong != fault.right
    assert all((ROOT / name).exists() for name in fault.tests.split())


def test_no_area_has_two_faults():
    assert len({fault.area for fault in FAULTS}) == len(FAULTS)
