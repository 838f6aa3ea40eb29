"""Uses of chains outside the state folder, as the commands that fill columns record them."""

import pytest

from lathe.service.chains.registry import Registry
from lathe.service.chains.usage import list_uses, read_recorded_uses, record_use
from lathe.transforms.errors import ArtifactError


def test_recorded_uses_are_listed_once_and_only_for_their_version(tmp_path):
    path = tmp_path / "uses.json"
    for chain, use in [("a@1", "column one"), ("a@1", "column two"), ("a@2", "column one"), ("a@1", "column one")]:
        record_use(path, chain, use)
    recorded = read_recorded_uses(path)
    assert recorded == {"a@1": ["column one", "column two"], "a@2": ["column one"]}
    registry = Registry(tmp_path / "chains")
    assert list(list_uses(registry, "a", 1, [], recorded)) == ["column one", "column two"]
    assert list(list_uses(registry, "a", 3, [], recorded)) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a@1": 3}', b"[" * 100_000, b"\xff"])
def test_a_damaged_file_of_uses_is_named_and_left_alone(tmp_path, content):
    path = tmp_path / "uses.json"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="delete it"):
        record_use(path, "a@1", "column")
    assert path.read_bytes() == content
