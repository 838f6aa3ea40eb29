import json

import pytest

from lathe.service.settings import Settings, read_settings


def test_encoders_setting_is_json_or_a_file_of_json(tmp_path, monkeypatch):
    """Both forms give the specs in the order of the list."""
    described = [{"name": "small", "model": "some/model", "layer": 3}, {"name": "other", "model": "a/b"}]
    (tmp_path / "encoders.json").write_text(json.dumps(described))
    for value in (json.dumps(described), str(tmp_path / "encoders.json")):
        monkeypatch.setenv("LATHE_ENCODERS", value)
        specs = read_settings().specs
        assert [spec.name for spec in specs] == ["small", "other"]
        assert specs[0].layer == 3


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ENCODERS", "[{"),
        ("ENCODERS", '[{"name": "a"}]'),
        ("ENCODERS", '[{"name": "a", "model": "m", "novel": 1}]'),
        ("ENCODERS", '[{"name": "a/b", "model": "m"}]'),
        ("ENCODERS", '[{"name": "a", "model": "m"}, {"name": "a", "model": "n"}]'),
        ("ENCODERS", "/nowhere/encoders.json"),
        ("PORT", "http"),
        ("PORT", "70000"),
        ("MAX_TEXTS", "0"),
    ],
)
def test_an_invalid_setting_raises_value_error_naming_its_variable(monkeypatch, name, value):
    monkeypatch.setenv(f"LATHE_{name}", value)
    with pytest.raises(ValueError, match="LATHE_"):
        read_settings()


def test_arguments_of_read_settings_override_the_environment_unless_none(monkeypatch, tmp_path):
    monkeypatch.setenv("LATHE_PORT", "9999")
    monkeypatch.setenv("LATHE_HOME", str(tmp_path))
    assert read_settings(port=1234, home=None).port == 1234
    assert read_settings().port == 9999
    assert read_settings().home == tmp_path


def test_api_keys_are_separated_by_commas_and_stripped(monkeypatch):
    monkeypatch.setenv("LATHE_API_KEYS", " a, b ,,")
    assert read_settings().api_keys == ("a", "b")
    monkeypatch.setenv("LATHE_API_KEYS", "")
    assert read_settings().api_keys == ()


SETTINGS = {
    "home": "state",
    "host": "0.0.0.0",
    "port": 9000,
    "root_path": "/lathe",
    "encoders": [
        {"name": "a", "model": "m", "prompts": {"query": 'find, "all": '}, "max_length": 8},
        {"name": "b", "upstream": {"url": "http://127.0.0.1/v1", "protocol": "openai", "model": "m"}, "load": False},
    ],
    "public_without_keys": True,
    "cors_origins": ("https://a.example", "https://b.example"),
    "allowed_hosts": ("a.example",),
    "log_level": "error",
    "index_url": "http://127.0.0.1:19530",
    "index_token": "root:Milvus",
    "redis_url": "redis://:secret@127.0.0.1/1",
    "redis_cache_bytes": 0,
    "redis_cache_seconds": 5,
    "drift": False,
    "drift_window": 1000,
    "drift_threshold": 1 / 3,
    "data_root": "data",
    "device": "cpu",
    "dtype": "float32",
    "idle_seconds": 1.5,
    "idle_requests": "refuse",
    "model_bytes": 1,
    "threads": 3,
    "workers": 2,
    "max_batch_tokens": 7,
    "worker_seconds": 2.5,
    "shutdown_seconds": 0,
    "cache_bytes": 0,
    "upstream_bytes": 0,
    "encoded_bytes": 0,
    "job_threads": 5,
    "job_nice": 3,
    "max_texts": 11,
    "max_vectors": 12,
    "max_body_bytes": 13,
    "body_memory_bytes": 14,
    "body_seconds": 1.5,
    "keep_alive_seconds": 3,
    "max_connections": 15,
    "max_queued_texts": 16,
    "max_queued_tokens": 17,
}
KEYS = {f"{kind}_keys{suffix}" for kind in ("api", "admin", "read_only") for suffix in ("", "_file")}


@pytest.mark.parametrize("values", [SETTINGS, {}], ids=["others", "defaults"])
def test_another_process_reads_the_same_settings_from_the_environment_without_keys(values, monkeypatch):
    assert SETTINGS.keys() | KEYS == Settings.model_fields.keys()  # a new setting belongs in this test
    settings = read_settings(**values, admin_keys="boss", api_keys="user")
    if not values:
        monkeypatch.setenv("LATHE_THREADS", "99")  # what this process was started with does not matter
        monkeypatch.setenv("LATHE_ENCODERS", "missing.json")

    for name, value in settings.to_environment().items():
        monkeypatch.setenv(name, value)
    read = read_settings()
    for name in SETTINGS.keys() - {"home"}:
        assert getattr(read, name) == getattr(settings, name), name
    assert read.home == settings.home.expanduser().absolute()
    assert (read.api_keys, read.admin_keys) == ((), ())
