import pytest
from pydantic import TypeAdapter, ValidationError

from lathe.training.settings import ChainName, EncoderName


@pytest.mark.parametrize("name", ["", "none", "a b", "../x", "-a", "a" * 65, "é", "a\n"])
def test_a_name_that_paths_cannot_hold_is_refused_with_what_it_cannot_name(name):
    for kind, what in ((ChainName, "a chain"), (EncoderName, "an encoder")):
        with pytest.raises(ValidationError, match=f"cannot name {what}: letters, digits"):
            TypeAdapter(kind).validate_python(name)


@pytest.mark.parametrize("name", ["a", "A1.b_c-d", "a" * 64])
def test_other_names_are_kept(name):
    assert TypeAdapter(ChainName).validate_python(name) == name
