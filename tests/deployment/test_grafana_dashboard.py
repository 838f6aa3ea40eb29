"""The Grafana dashboard and the autoscaler use only metrics that the service exports."""

import importlib
import json
import pkgutil
import re

import promql_parser
import pytest
import yaml
from prometheus_client import REGISTRY

FROM_PROMETHEUS_ITSELF = {"up"}
SUFFIXES = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"], "gauge": [""]}


@pytest.fixture(scope="module")
def dashboard(root):
    return json.loads((root / "docker/grafana/dashboards/lathe.json").read_text())


@pytest.fixture(scope="module")
def exported():
    """Return the names of all metrics that the service exports."""
    import lathe.service.redis

    importlib.import_module("lathe.service.app")  # what these import may count something
    for module in pkgutil.iter_modules(lathe.service.redis.__path__, "lathe.service.redis."):
        importlib.import_module(module.name)
    return {family.name + suffix for family in REGISTRY.collect() for suffix in SUFFIXES.get(family.type, [])}


def queries(dashboard):
    """Return all queries of the dashboard."""
    return [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]


def metrics(query):
    """Return the metric names in a query."""
    found = []

    def visit(node):
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node.name)
        return True

    promql_parser.walk(promql_parser.parse(query.replace("$__rate_interval", "5m")), visit)
    return found


def test_every_metric_in_a_query_is_exported(dashboard, exported):
    named = {name for query in queries(dashboard) for name in metrics(query)}

    assert len(named) > 20
    assert named - exported - FROM_PROMETHEUS_ITSELF == set()


def test_dashboard_variables_are_labels_of_exported_metrics_and_all_are_used(dashboard, exported):
    variables = {variable["name"]: variable["definition"] for variable in dashboard["templating"]["list"]}
    used = {name for query in queries(dashboard) for name in re.findall(r"\$([a-z]\w*)", query)}

    assert used == set(variables)
    for definition in variables.values():
        assert re.fullmatch(r"label_values\((\w+), \w+\)", definition)[1] in exported


def test_rates_in_queries_are_taken_of_counters_only(dashboard):
    for query in queries(dashboard):
        assert len(re.findall(r"(?:rate|increase)\(", query)) == len(
            re.findall(r"(?:rate|increase)\(\w+_(?:total|bucket|sum|count)\{", query)
        )


def test_the_autoscaler_uses_an_exported_metric(root, exported):
    documents = yaml.safe_load_all((root / "k8s/scaling.yaml").read_text())
    (scaler,) = (document for document in documents if document["kind"] == "HorizontalPodAutoscaler")
    pods = [metric["pods"]["metric"]["name"] for metric in scaler["spec"]["metrics"] if metric["type"] == "Pods"]

    assert pods == ["lathe_queue_texts"]
    assert set(pods) <= exported
