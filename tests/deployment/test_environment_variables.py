"""Environment variables in deployment files: each is a setting of the service, and the required ones are set."""

import re

import pytest

from lathe.service.settings import Settings

FILES = ["docker-compose.yml", ".dockerignore", "docs/deployment.md"]
FOLDERS = ["docker", "k8s"]
NAME = re.compile(r"\bLATHE_[A-Z_]*[A-Z]\b")


def test_every_lathe_variable_in_deployment_files_is_a_setting(root):
    files = [root / name for name in FILES]
    files += [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    texts = {path: path.read_text() for path in files if path.suffix != ".pyc"}
    known = {f"LATHE_{name.upper()}" for name in Settings.model_fields}

    named = {(path.name, name) for path, text in texts.items() for name in NAME.findall(text)}

    assert len(named) > 20
    assert [(path, name) for path, name in sorted(named) if name not in known] == []


@pytest.mark.parametrize("name", ["home", "host", "redis_url", "redis_cache_bytes", "threads", "job_threads"])
def test_compose_and_kubernetes_both_set_what_replicas_need(root, name):
    variable = f"LATHE_{name.upper()}"
    image = (root / "docker/Dockerfile").read_text()

    for folder in ("docker-compose.yml", "k8s"):
        place = root / folder
        text = place.read_text() if place.is_file() else "".join(file.read_text() for file in place.glob("*.yaml"))
        assert variable in text or variable in image, folder
