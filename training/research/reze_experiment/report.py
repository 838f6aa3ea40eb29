"""Output of an experiment: JSON and CSV with all values, plots, an HTML page, tables for the terminal."""

import csv
import io
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import orjson

from training.finetuning.report import REFERENCE, source_rows
from training.reporting.figures import to_svg
from training.reporting.page import Section, render_page
from training.reporting.tables import Table
from training.research.reze_experiment.findings import Findings, find
from training.research.reze_experiment.plots import figures
from training.research.reze_experiment.results import Result
from training.research.reze_experiment.run import Experiment
from training.research.reze_experiment.tables import (
    arm_rows,
    average_rows,
    center_rows,
    difference_rows,
    geometries,
    offline_rows,
    shift_rows,
    target_rows,
)
from training.research.reze_experiment.words import sentences
from transforms.files import replace_synced

JSON, CSV, HTML = "experiment.json", "results.csv", "report.html"
"""Names of the files that `write_report` writes besides the plots."""
DPI = 150
"""Resolution of the PNG files."""


def write_report(experiment: Experiment, out: Path) -> tuple[Findings, list[Path]]:
    """Write JSON, CSV, the HTML page and the plots as PNG into the folder `out`; return the findings and the paths."""
    findings = find(experiment)
    said = sentences(findings)
    pictures, paths = {}, []
    for name, (title, figure) in figures(experiment, findings).items():
        paths.append(out / f"{name}.png")
        replace_synced(paths[-1], as_png(figure))
        pictures[title] = to_svg(figure)
    contents = {
        JSON: orjson.dumps(
            as_json(experiment, findings, said), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY
        ),
        CSV: as_csv(experiment.results).encode(),
        HTML: page(experiment, findings, said, pictures).encode(),
    }
    for name, content in contents.items():
        replace_synced(out / name, content)
    return findings, [out / name for name in contents] + paths


def as_png(figure: Any) -> bytes:
    """Render a figure as PNG bytes."""
    payload = io.BytesIO()
    figure.savefig(payload, format="png", dpi=DPI, metadata={"Software": None})
    return payload.getvalue()


def as_json(experiment: Experiment, findings: Findings, said: Sequence[str]) -> dict[str, Any]:
    """Return settings, findings and all results as a dict, with versions and date but without paths of this machine."""
    settings = experiment.settings.model_dump(mode="json", exclude={"sources", "targets", "encoder"})
    encoder = {name: experiment.encoder[name] for name in ("name", "fingerprint", "dimensions", "max_length")}
    return {
        "settings": settings,
        "encoder": encoder,
        "targets": [one.target.name for one in experiment.prepared],
        "sources": {one.target.name: [asdict(report) for report in one.mixture.reports] for one in experiment.prepared},
        "libraries": {
            name: version(name) for name in ("lathe", "torch", "transformers", "sentence-transformers", "mteb")
        },
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
        "sentences": said,
        "findings": findings,
        "offline": geometries(experiment),
        "results": experiment.results,
        "problems": experiment.problems,
    }


def as_csv(results: Sequence[Result]) -> str:
    """Return the results as CSV text, one row per cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Result)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(result) for result in results)
    return text.getvalue()


def page(experiment: Experiment, findings: Findings, said: Sequence[str], pictures: dict[str, str]) -> str:
    """Return the HTML page of an experiment: sentences, plots as inline SVG, tables and problems."""
    tables = {}
    for rate in sorted({result.learning_rate for result in experiment.results}):
        at = f"learning rate {rate:g}"
        tables[f"Average over targets × 100, {at} (Table 2)"] = average_rows(findings, rate)
        tables[f"The same in a linear probe, classifications only, {at}"] = average_rows(findings, rate, "linear_probe")
        tables[f"REZE against the others, {at}"] = difference_rows(findings, rate)
        tables[f"Median against mean, {at} (Table 3)"] = center_rows(experiment, rate)
        tables[f"By target × 100, {at} (Tables 5 to 9)"] = target_rows(experiment, rate)
    tables["Drift, isotropy, time (Figure 3)"] = shift_rows(findings)
    tables["What the targets of the regulariser change"] = offline_rows(experiment)
    tables["Arms"] = arm_rows(experiment)
    for one in experiment.prepared:
        tables[f"Sources where {one.target.name} is left out"] = source_rows(one.mixture)
    limit = experiment.settings.limit
    section = Section(
        title="REZE and its rivals",
        sentences=said,
        figures=pictures,
        tables={name: Table.from_rows(rows) for name, rows in tables.items() if len(rows) > 1},
        problems=experiment.problems,
    )
    return render_page(
        [section],
        about=f"{experiment.encoder['name']}, {len(experiment.prepared)} targets left out in turn, "
        f"{'all' if limit is None else f'at most {limit:,}'} rows of each test; 95 % intervals over seeds; metrics of "
        f"mteb {version('mteb')}, label accuracy our own.",
        files="experiment.json and results.csv",
        reference=REFERENCE,
    )


def in_terminal(experiment: Experiment, findings: Findings) -> str:
    """Return averages, drift, sentences and problems as plain text for a terminal; close all open figures."""
    parts = [
        f"Average over targets × 100, learning rate {rate:g}\n"
        + Table.from_rows(average_rows(findings, rate)).to_text()
        for rate in sorted({result.learning_rate for result in experiment.results})
    ]
    parts += [
        "Before the fine-tuning\n" + Table.from_rows(shift_rows(findings)).to_text(),
        "\n".join(sentences(findings)),
    ]
    if experiment.problems:
        parts.append("Problems\n" + "\n".join(experiment.problems))
    plt.close("all")
    return "\n\n".join(parts)
