"""Output of an experiment: JSON and CSV with all values, plots, an HTML page, tables for the terminal."""

import io
from collections.abc import Sequence
from dataclasses import asdict, astuple, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lathe.training.reporting.figures import to_svg
from lathe.training.reporting.page import Section, describe_environment, format_text, render_page, write_files
from lathe.training.reporting.tables import Table
from research.reze_experiment.findings import Findings, compute_findings
from research.reze_experiment.plots import plot_all
from research.reze_experiment.results import Result
from research.reze_experiment.run import Experiment
from research.reze_experiment.summary import summarize_experiment
from research.reze_experiment.tables import (
    build_average_table,
    build_shift_table,
    build_tables,
    list_rates,
    read_geometries,
)

REFERENCE = "https://arxiv.org/abs/2604.17257"
"""Address of the REZE paper."""

JSON, CSV, HTML = "experiment.json", "results.csv", "report.html"
"""Names of the files that `write_report` writes besides the plots."""


def write_report(experiment: Experiment, out: Path) -> tuple[Findings, list[Path]]:
    """Write JSON, CSV, the HTML page and the plots as PNG into the folder `out`.

    Returns:
        The findings and the paths.
    """
    findings = compute_findings(experiment)
    figures = plot_all(experiment, findings)
    images = {f"{name}.png": _draw_png(figure) for name, (_, figure) in figures.items()}
    section = Section(
        title="REZE and its rivals",
        sentences=summarize_experiment(findings),
        figures={title: to_svg(figure) for title, figure in figures.values()},
        tables=build_tables(experiment, findings)
        | {
            f"Sources where {one.target.name} is left out": one.mixture.build_source_table()
            for one in experiment.prepared
        },
        problems=experiment.problems,
    )
    page = render_page([section], _describe_setup(experiment), f"{JSON} and {CSV}", REFERENCE)
    paths = write_files(out, {JSON: to_json(experiment, findings), CSV: to_csv(experiment.results), HTML: page})
    return findings, paths + write_files(out, images)


def _draw_png(figure: Any) -> bytes:
    """Return a Matplotlib figure as the bytes of a PNG file. The figure stays open."""
    payload = io.BytesIO()
    figure.savefig(payload, format="png", dpi=150, metadata={"Software": None})
    return payload.getvalue()


def _describe_setup(experiment: Experiment) -> str:
    """Return the line below the page's title: encoder, targets, rows of each test, intervals and version of mteb."""
    limit = experiment.settings.limit
    return (
        f"{experiment.encoder['name']}, {len(experiment.prepared)} targets left out in turn, "
        f"{'all' if limit is None else f'at most {limit:,}'} rows of each test; 95 % intervals over seeds; metrics of "
        f"mteb {version('mteb')}, label accuracy our own."
    )


def to_json(experiment: Experiment, findings: Findings) -> dict[str, Any]:
    """Return settings, findings and all results as a dict, with versions and date but without paths of this machine."""
    encoder = {name: experiment.encoder[name] for name in ("name", "fingerprint", "dimensions", "max_length")}
    return {
        "settings": experiment.settings.model_dump(mode="json", exclude={"sources", "targets", "encoder"}),
        "encoder": encoder,
        "targets": [one.target.name for one in experiment.prepared],
        "sources": {one.target.name: [asdict(report) for report in one.mixture.reports] for one in experiment.prepared},
        **describe_environment("lathe-training", "torch", "transformers", "sentence-transformers", "mteb"),
        "sentences": summarize_experiment(findings),
        "findings": findings,
        "offline": read_geometries(experiment),
        "results": experiment.results,
        "problems": experiment.problems,
    }


def to_csv(results: Sequence[Result]) -> str:
    """Return the results as CSV text, one row per cell."""
    return Table.from_rows([[field.name for field in fields(Result)], *map(astuple, results)]).to_csv()


def format_terminal(experiment: Experiment, findings: Findings) -> str:
    """Format averages, drift, sentences and problems as plain text."""
    tables = {
        f"Average over targets × 100, learning rate {rate:g}": build_average_table(findings, rate)
        for rate in list_rates(experiment)
    }
    tables["Before the fine-tuning"] = build_shift_table(findings)
    section = Section(
        "",
        summarize_experiment(findings),
        tables={title: table for title, table in tables.items() if table},
        problems=experiment.problems,
    )
    return format_text(section)
