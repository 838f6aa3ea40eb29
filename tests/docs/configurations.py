"""Who reads the configurations that pages show."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from lathe.service.settings import read_settings
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.job import read_settings as read_job
from lathe.training.synthesis.job import SynthesisJob
from tests.helpers import eventually

if TYPE_CHECKING:
    from tests.docs.workshop import Workshop


def read_encoders(path: Path, _workshop: "Workshop") -> None:
    """Read a value of `LATHE_ENCODERS`."""
    read_settings(encoders=path.read_text())


def read_log_line(path: Path, workshop: "Workshop") -> None:
    """Raise `ValueError` unless the server writes every key of this log line."""

    def logged_requests() -> list[dict[str, object]]:
        lines = [json.loads(line) for line in workshop.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line.get("route") == "/embed"]

    workshop.embed(["a request to be logged"])
    known = {key for line in eventually(logged_requests) for key in line}  # the server logs after it has answered
    if unknown := set(json.loads(path.read_text())) - known:
        raise ValueError(f"the server logs no {', '.join(sorted(unknown))}")


LARGEST = {"dense_vector": ("dims", 4096), "knn_vector": ("dimension", 16_000)}
"""Key of the dimensions, and their limit, by type of field in Elasticsearch and OpenSearch."""


def read_search_request(path: Path, _workshop: "Workshop") -> None:
    """Raise `ValueError` unless a request for Elasticsearch or OpenSearch is JSON, and its vector fields can exist."""
    request = json.loads(path.read_text())
    fields = request.get("mappings", {}).get("properties", {})
    for name, field in fields.items():
        key, largest = LARGEST.get(field["type"], (None, 0))
        if key and not 1 <= field[key] <= largest:
            raise ValueError(f"{name} has {field[key]} dimensions")
        options = field.get("index_options", {})
        if options.get("type", "").startswith("bbq") and field["dims"] <= 64:
            raise ValueError(f"{name} has too few dimensions for {options['type']}")
    if not fields and not {"query", "rescore"} <= set(request):
        raise ValueError("the request has neither a mapping nor a query that is ranked again")


READERS: dict[str, Callable[[Path, "Workshop"], object]] = {
    "job": lambda path, _: read_job(path, TrainingJob),
    "synthesis": lambda path, _: read_job(path, SynthesisJob),
    "encoders": read_encoders,
    "log line": read_log_line,
    "search request": read_search_request,
}
"""Each raises for what it cannot use."""
