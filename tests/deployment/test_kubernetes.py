"""The cluster's manifests: valid by Kubernetes' own schemas, and in agreement with one another."""

import re

import kubernetes_validate
import pytest
import yaml

from tests.deployment.dockerfile import read_dockerfile

VERSIONS = ["1.34", "1.37"]  # the first where a pod may sleep before it stops for good, and the newest
WORKLOADS = ("Deployment", "StatefulSet")


@pytest.fixture(scope="module")
def kustomization(root):
    return yaml.safe_load((root / "k8s/kustomization.yaml").read_text())


@pytest.fixture(scope="module")
def manifests(root, kustomization):
    """Return all manifests of the cluster."""
    files = [(root / "k8s" / name).read_text() for name in kustomization["resources"]]
    return [document for file in files for document in yaml.safe_load_all(file)]


def of_kind(manifests, *kinds):
    """Return the manifests of these kinds by name."""
    return {document["metadata"]["name"]: document for document in manifests if document["kind"] in kinds}


def pods(manifests):
    """Return the pod spec of each workload by name."""
    found = of_kind(manifests, *WORKLOADS)
    assert set(found) == {"api", "index", "worker", "training", "redis"}
    return {name: workload["spec"]["template"]["spec"] for name, workload in found.items()}


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_is_valid(manifests, version):
    assert len(manifests) > 12
    for manifest in manifests:
        kubernetes_validate.validate(manifest, version, strict=True)


def test_kustomization_lists_every_manifest_file(root, kustomization):
    files = {path.name for path in (root / "k8s").glob("*.yaml")} - {"kustomization.yaml"}

    assert set(kustomization["resources"]) == files
    assert kustomization["secretGenerator"][0]["envs"] == ["secrets.env"]


def test_the_images_have_the_version_of_the_distributions(root, kustomization):
    version = (root / "VERSION").read_text().strip()

    assert {image["newTag"] for image in kustomization["images"]} == {version}
    assert f"/lathe:{version} " in (root / "docs/deployment.md").read_text()


def test_secret_keys_are_listed_without_values_and_their_files_are_ignored_by_git(root, kustomization, manifests):
    example = (root / "k8s/secrets.env.example").read_text()
    names = re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE)
    ignored = (root / ".gitignore").read_text().splitlines()
    sources = [
        variable["valueFrom"]["secretKeyRef"]
        for spec in pods(manifests).values()
        for variable in spec["containers"][0]["env"]
        if "secretKeyRef" in variable.get("valueFrom", {})
    ]

    assert all(value == "" for _, value in names)
    assert {"k8s/secrets.env", ".env"} <= set(ignored)
    assert {source["key"] for source in sources} == {name for name, _ in names}
    assert {source["name"] for source in sources} == {kustomization["secretGenerator"][0]["name"]}


def test_pods_meet_the_restricted_pod_security_standard(manifests):
    for name, spec in pods(manifests).items():
        (container,) = spec["containers"]
        confined = container["securityContext"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert confined["allowPrivilegeEscalation"] is False, name
        assert confined["readOnlyRootFilesystem"] is True, name
        assert confined["capabilities"] == {"drop": ["ALL"]}, name
        assert spec["automountServiceAccountToken"] is False, name
        assert {"cpu", "memory"} == set(container["resources"]["requests"]), name
        assert "memory" in container["resources"]["limits"], name


def test_pods_run_as_the_user_of_their_image(root, manifests):
    stages = read_dockerfile(root / "docker/Dockerfile")

    for name, image in {"api": "serve", "index": "serve", "worker": "worker", "training": "worker"}.items():
        (user,) = stages[image].find("USER")
        context = pods(manifests)[name]["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user.value


def test_volumes_are_mounted_where_the_images_have_them(root, manifests, composed):
    (volume,) = read_dockerfile(root / "docker/Dockerfile")["serve"].find("VOLUME")

    for name in ("api", "index", "worker", "training"):
        mounts = {one["name"]: one["mountPath"] for one in pods(manifests)[name]["containers"][0]["volumeMounts"]}
        (mount,) = composed["services"][name]["volumes"]
        assert mounts["home"] == mount["target"] == volume.value, name


def test_probes_request_existing_health_routes(manifests):
    from lathe.service.http.routes.health import router

    paths = {route.path for route in router.routes}
    for name in ("api", "index"):
        container = pods(manifests)[name]["containers"][0]
        asked = {kind: container[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "readiness", "liveness")}
        assert asked == {"startup": "/health/ready", "readiness": "/health/ready", "liveness": "/health/live"}
        assert set(asked.values()) <= paths


@pytest.mark.parametrize("name", ["worker", "training"])
def test_the_liveness_probes_of_workers_equal_the_compose_health_checks(name, manifests, composed):
    container = pods(manifests)[name]["containers"][0]

    asked = composed["services"][name]["healthcheck"]["test"]
    assert ["CMD", *container["livenessProbe"]["exec"]["command"]] == asked


def test_every_selector_matches_an_existing_workload(manifests):
    workloads = of_kind(manifests, *WORKLOADS)
    labels = [workload["spec"]["template"]["metadata"]["labels"] for workload in workloads.values()]
    selectors = [service["spec"]["selector"] for service in of_kind(manifests, "Service").values()]
    selectors += [one["spec"]["selector"]["matchLabels"] for one in of_kind(manifests, "PodDisruptionBudget").values()]
    for policy in of_kind(manifests, "NetworkPolicy").values():
        selectors.append(policy["spec"]["podSelector"].get("matchLabels", {}))

    for selector in selectors:
        assert any(selector.items() <= one.items() for one in labels), selector
    for workload in workloads.values():
        wanted = workload["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


def test_only_api_index_and_workers_may_connect_to_redis(manifests):
    policies = of_kind(manifests, "NetworkPolicy")
    (rule,) = policies["redis"]["spec"]["ingress"]
    labels = {
        name: workload["spec"]["template"]["metadata"]["labels"]
        for name, workload in of_kind(manifests, *WORKLOADS).items()
    }

    assert policies["nothing-else"]["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    wanted = rule["from"][0]["podSelector"]["matchLabels"]
    assert {name for name, label in labels.items() if wanted.items() <= label.items()} == {
        "api",
        "index",
        "worker",
        "training",
    }


def test_the_index_has_one_replica_and_only_the_autoscaler_scales_the_api(manifests):
    workloads = of_kind(manifests, *WORKLOADS)
    (scaler,) = of_kind(manifests, "HorizontalPodAutoscaler").values()

    assert workloads["index"]["spec"]["replicas"] == 1
    assert workloads["index"]["kind"] == "StatefulSet"
    assert "replicas" not in workloads["api"]["spec"]
    assert scaler["spec"]["scaleTargetRef"]["name"] == "api"
    assert {metric["type"] for metric in scaler["spec"]["metrics"]} == {"Pods", "Resource"}
