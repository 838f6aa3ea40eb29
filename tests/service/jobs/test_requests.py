import pytest

from lathe.service.errors import BadValueError
from lathe.service.jobs.requests import KINDS, parse_request


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_request_of_each_kind_is_refused_by_the_class_of_the_kind(kind):
    with pytest.raises(BadValueError, match="the request of the job is damaged: encoder: Field required"):
        parse_request(kind, b"{}")


def test_an_unknown_kind_is_refused_with_the_kinds_that_there_are():
    with pytest.raises(BadValueError, match="there is no kind of job 'os.system'; there are fit, advise, reindex"):
        parse_request("os.system", b"{}")
