"""docker-compose.yml, read by Compose itself, and the files it hands to the containers."""

import json
import re
from pathlib import Path

import pytest
import yaml

from lathe.service.settings import Settings

VARIABLE = re.compile(r"\$\{(\w+)")
REQUIRED = ("LATHE_API_KEYS", "LATHE_ADMIN_KEYS", "REDIS_PASSWORD", "GRAFANA_PASSWORD")
LATHE = ("api", "index", "worker", "training")


@pytest.mark.parametrize("missing", REQUIRED)
def test_compose_refuses_to_start_without_keys_and_passwords(tool, missing):
    filled_in = dict.fromkeys(REQUIRED, "something") | {missing: ""}

    done = tool("docker-compose", "config", "--quiet", **filled_in)

    assert done.returncode != 0
    assert missing in done.stderr


def test_compose_gpu_file_builds_the_gpu_image_for_all_lathe_services(tool):
    files = ("--file", "docker-compose.yml", "--file", "docker/compose.gpu.yml", "--profile", "training")

    done = tool("docker-compose", *files, "config", "--format", "json", **dict.fromkeys(REQUIRED, "something"))

    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert {name: services[name]["image"] for name in LATHE} == {
        "api": "lathe:gpu",
        "index": "lathe:gpu",
        "worker": "lathe-worker:gpu",
        "training": "lathe-training:gpu",
    }
    for name in LATHE:
        assert services[name]["build"]["args"]["PACKAGES"].startswith("faiss-gpu==")
        assert services[name]["build"]["args"]["TORCH_INDEX_URL"] == ""


def test_env_example_has_exactly_the_variables_that_are_read(root):
    files = (root / "docker-compose.yml", root / "docker/compose.gpu.yml")
    read = {name for file in files for name in VARIABLE.findall(file.read_text())}
    shown = re.findall(r"^#?([A-Z_]+)=", (root / "docker/env.example").read_text(), re.MULTILINE)

    assert sorted(shown) == sorted(read)


def test_only_the_proxy_is_published_and_only_on_this_machine(composed):
    published = {name: service["ports"] for name, service in composed["services"].items() if service.get("ports")}

    assert list(published) == ["nginx"]
    assert [(port["host_ip"], port["published"]) for port in published["nginx"]] == [("127.0.0.1", "8080")]


def test_every_container_has_a_health_check_restarts_and_has_restricted_privileges(composed):
    for name, service in composed["services"].items():
        assert service["restart"] == "unless-stopped", name
        assert "healthcheck" in service or name in ("api", "index"), name  # those have their image's own
        assert not service.get("privileged"), name
        assert ":" in service["image"], name
        if name != "milvus":
            assert service["cap_drop"] == ["ALL"], name
            assert "no-new-privileges:true" in service["security_opt"], name
        if name not in ("milvus", "grafana"):
            assert service["read_only"], name


def test_every_mounted_file_of_the_repository_exists(composed, root):
    mounts = [mount for service in composed["services"].values() for mount in service.get("volumes", [])]
    bound = [Path(mount["source"]) for mount in mounts if mount["type"] == "bind"]

    assert len(bound) >= 6
    for path in bound:
        assert path.is_relative_to(root)
        assert path.exists(), path


def test_only_api_and_index_services_have_keys(composed):
    services = composed["services"]
    holders = {name for name, service in services.items() if "LATHE_API_KEYS" in service.get("environment", {})}

    assert holders == {"api", "index"}


def test_compose_builds_each_service_from_its_target_of_the_dockerfile(composed):
    built = {name: composed["services"][name]["build"]["target"] for name in LATHE}

    assert built == {"api": "serve", "index": "serve", "worker": "worker", "training": "worker"}
    assert composed["services"]["worker"]["command"] is None  # the command of the image
    assert composed["services"]["training"]["command"] == ["worker", "--training"]
    assert composed["services"]["training"]["build"]["args"]["WORKER_EXTRAS"] == "parquet,finetuning"


def test_redis_memory_exceeds_the_cache_and_only_expiring_keys_are_evicted(composed):
    redis = composed["services"]["redis"]
    amount, unit = re.fullmatch(r"(\d+)(mb|gb)", redis["environment"]["MAXMEMORY"]).groups()
    command = redis["command"][-1]

    assert int(amount) * 1024 ** {"mb": 2, "gb": 3}[unit] >= 1.5 * Settings.model_fields["redis_cache_bytes"].default
    assert "--maxmemory-policy volatile-lru" in command
    assert "--appendonly yes" in command


def test_stop_grace_periods_exceed_the_shutdown_time(composed):
    given = {name: composed["services"][name]["stop_grace_period"] for name in LATHE}

    assert given == {"api": "40s", "index": "40s", "worker": "15m0s", "training": "40s"}
    assert Settings.model_fields["shutdown_seconds"].default + 5 <= 40


def test_redis_and_its_clients_share_an_internal_network(composed):
    assert composed["networks"]["back"]["internal"]
    assert list(composed["services"]["redis"]["networks"]) == ["back"]
    assert "back" not in composed["services"]["nginx"]["networks"]
    for name in LATHE:
        assert "back" in composed["services"][name]["networks"]


def test_nginx_prometheus_and_grafana_refer_to_services_of_the_compose_file(composed, root):
    servers = re.findall(r"server (\w+):8080 resolve", (root / "docker/nginx/upstreams.conf").read_text())
    scraped = yaml.safe_load((root / "docker/prometheus.yml").read_text())["scrape_configs"][0]["dns_sd_configs"][0]
    source = yaml.safe_load((root / "docker/grafana/provisioning/datasources/prometheus.yml").read_text())

    assert servers == ["api", "index"] == scraped["names"]
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    for name in servers:
        assert "front" in composed["services"][name]["networks"]
    assert {"front"} == {net for name in ("nginx", "prometheus") for net in composed["services"][name]["networks"]}


def test_nginx_body_limit_is_up_to_a_tenth_larger_than_the_services(root):
    text = (root / "docker/nginx/nginx.conf").read_text()
    megabytes = int(re.search(r"client_max_body_size (\d+)m;", text)[1])

    assert 1 < megabytes * 2**20 / Settings.model_fields["max_body_bytes"].default < 1.1
