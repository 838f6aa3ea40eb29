import os

import pytest
from starlette.requests import Request

from lathe.service.app import create_app
from lathe.service.auth import Keys
from lathe.service.errors import ForbiddenError
from lathe.service.jobs.runner import build_job_environment
from lathe.service.key_file import KEY_VARIABLES
from lathe.service.settings import read_settings


@pytest.fixture
def key_file(tmp_path):
    """Return a function that writes a key file and returns its path."""

    def write(content, name="keys"):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def asking(header):
    """Build a request with an `Authorization` header."""
    return Request({"type": "http", "headers": [(b"authorization", header)]})


def test_a_key_file_has_one_key_per_line_added_to_the_keys_that_are_set(key_file, monkeypatch):
    path = key_file("# of the search team\n\n  first, with a comma \r\n\t# not\nsecond#half\nthird")
    monkeypatch.setenv("LATHE_API_KEYS_FILE", str(path))
    monkeypatch.setenv("LATHE_ADMIN_KEYS_FILE", str(key_file("\ufeffboss\n", "admin")))
    of_file = ("first, with a comma", "second#half", "third")
    assert read_settings().api_keys == of_file
    assert read_settings(api_keys="own").api_keys == ("own", *of_file)
    assert read_settings().admin_keys == ("boss",)


@pytest.mark.parametrize(
    ("setting", "content", "reason"),
    [
        ("api_keys_file", None, "cannot be read: No such file"),
        ("admin_keys_file", "", "holds no key"),
        ("api_keys_file", "# s3cret\n \n", "holds no key"),
        ("admin_keys_file", b"s3cret\xff\n", "not UTF-8 text"),
    ],
)
def test_a_key_file_without_keys_raises_one_line_that_quotes_no_content(
    key_file, tmp_path, monkeypatch, setting, content, reason
):
    path = tmp_path / "absent" if content is None else key_file(content)
    monkeypatch.setenv(f"LATHE_{setting.upper()}", str(path))
    with pytest.raises(ValueError, match=reason) as raised:
        read_settings()
    message = str(raised.value)
    assert f"LATHE_{setting.upper()}: " in message and str(path) in message
    assert "s3cret" not in message and "\n" not in message


def test_a_key_file_may_be_a_pipe_that_is_read_once():
    read_end, write_end = os.pipe()
    os.write(write_end, b"piped\n")
    os.close(write_end)
    assert read_settings(api_keys_file=f"/dev/fd/{read_end}").api_keys == ("piped",)
    os.close(read_end)


def test_an_api_key_file_lets_clients_without_the_admin_key_use_a_public_address_and_no_repr_shows_keys(key_file):
    assert read_settings(host="0.0.0.0", admin_keys_file=key_file("boss")).admin_key_only
    assert not read_settings(host="0.0.0.0", api_keys_file=key_file("k")).admin_key_only
    settings = read_settings(api_keys="s3cret", admin_keys_file=key_file("s3cret"))
    assert "s3cret" not in repr(settings)


def test_create_app_uses_key_files_and_generates_no_admin_key(key_file, tmp_path):
    settings = read_settings(
        home=tmp_path / "home", api_keys_file=key_file("use"), admin_keys_file=key_file("boss", "a")
    )
    keys = create_app(settings).state.services.keys
    assert (keys.api, keys.admin) == (("use",), ("boss",))
    assert not (tmp_path / "home/admin.key").exists()


def test_job_environments_contain_no_key_variables(key_file, monkeypatch):
    for name in KEY_VARIABLES:
        monkeypatch.setenv(name, str(key_file(name, name)) if name.endswith("FILE") else f"{name} key")
    monkeypatch.setenv("THIRD_PARTY_KEY", "of an embeddings API")
    told = build_job_environment(read_settings())
    assert not KEY_VARIABLES & told.keys() and "LATHE_READ_ONLY_KEYS" in KEY_VARIABLES
    assert told["THIRD_PARTY_KEY"] == "of an embeddings API"


NOT_UTF8 = "\udcff"
"""How Python decodes the byte 255 of an environment variable, which is no UTF-8."""


@pytest.mark.parametrize("key", ["ascii", "clé à", "鍵", NOT_UTF8])
def test_keys_are_accepted_in_the_bytes_in_which_they_were_set(key):
    keys = Keys((key,), ("boss",), needed=True)
    sent = key.encode("utf-8", "surrogateescape")
    keys.require_use(asking(b"Bearer " + sent))
    keys.require_use(asking(sent))
    with pytest.raises(ForbiddenError):
        keys.require_admin(asking(b"Bearer " + sent))
