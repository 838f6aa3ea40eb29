import json

import pytest

from lathe.service.settings import read_settings


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


@pytest.mark.parametrize(
    ("name", "value"), [("API_KEYS", ","), ("ADMIN_KEYS", " "), ("CORS_ORIGINS", " , ,"), ("ALLOWED_HOSTS", ",")]
)
def test_a_list_setting_of_only_commas_and_spaces_is_rejected(monkeypatch, name, value):
    monkeypatch.setenv(f"LATHE_{name}", value)
    with pytest.raises(ValueError, match=f"LATHE_{name}: .*only commas and spaces"):
        read_settings()
