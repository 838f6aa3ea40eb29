"""Report of an evaluation: JSON with everything, CSV with the scores, an HTML page, and plain text for the terminal."""

import csv
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from training.evaluation.audit.findings import find_audit
from training.evaluation.audit.tables import overview
from training.evaluation.audit.words import audit_sentences
from training.evaluation.findings import Findings, find
from training.evaluation.page import page
from training.evaluation.run import Results
from training.evaluation.tables import difference_rows, problem_lines, retention_rows, rows_of, score_rows
from training.evaluation.words import sentences
from transforms.files import replace_synced

JSON, CSV, HTML = "evaluation.json", "scores.csv", "report.html"
"""File names of the report."""
FIELDS = (
    "task,type,family,language,metric,encoder,mean_norm,method,group,label,size,score,control,difference_points,"
    "retention,seconds,error"
).split(",")
"""Columns of the CSV file."""


def write_report(results: Results) -> tuple[Findings, list[Path]]:
    """Compute the findings and write evaluation.json, scores.csv and report.html to the output folder.

    Existing files are replaced atomically. Returns the findings and the paths of the files.
    """
    findings, out = find(results), results.request.out
    said = sentences(findings)
    files = {
        JSON: orjson.dumps(as_json(results, findings, said), option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY),
        CSV: as_csv(results).encode(),
        HTML: page(results, findings, said).encode(),
    }
    for name, content in files.items():
        replace_synced(out / name, content)
    return findings, [out / name for name in files]


def as_json(results: Results, findings: Findings, said: Sequence[str]) -> dict[str, Any]:
    """Return the request, all scores with all metrics, and all statistics as a dict that orjson can serialize."""
    request = results.request
    return {
        "suite": request.suite.title,
        "reference": request.suite.reference,
        "limit": request.limit,
        "corpus": {"source": Path(request.corpus).name, "sentences": results.corpus_rows},
        "libraries": {name: version(name) for name in ("lathe", "mteb", "torch", "scikit-learn", "numpy")},
        "cores": os.cpu_count(),
        "date": datetime.now(UTC).date().isoformat(),
        "tasks": [{name: value for name, value in asdict(task).items() if name != "asked"} for task in results.tasks],
        "encoders": [
            asdict(result.member)
            | {"mean_norm": result.mean_norm, "intrinsic": result.intrinsic, "problems": result.problems}
            for result in results.encoders
        ],
        "sentences": said,
        "findings": findings,
        "audit": find_audit(results),
        "scores": rows_of(results, metrics=True),
    }


def as_csv(results: Results) -> str:
    """Format the scores as CSV text with the columns `FIELDS`."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows_of(results))
    return text.getvalue()


def in_terminal(results: Results, findings: Findings) -> str:
    """Format the main tables, sentences, audit and problems as plain text."""
    parts = ["Mean score of the raw vectors × 100, by type of task (number of tasks)\n" + aligned(score_rows(results))]
    if findings.cells:
        parts.append("Differences to raw vectors in points (half the 95 % interval), over tasks complete for all\n")
        parts[-1] += aligned(difference_rows(results, findings))
    if findings.retentions:
        parts.append("Share of the score that is kept, in per cent\n" + aligned(retention_rows(findings)))
    said = sentences(findings)
    if said:
        parts.append("\n".join(said))
    audit = find_audit(results)
    if audit is not None:
        parts.append("Audit of the encoders' vectors; norms are before they are brought to unit length\n")
        parts[-1] += aligned(overview(audit))
        parts.append("\n".join(audit_sentences(audit)))
    problems = list(problem_lines(results))
    if problems:
        parts.append("Problems\n" + "\n".join(problems))
    return "\n\n".join(parts)


def aligned(rows: Iterable[Sequence[str]]) -> str:
    """Format rows of cells as lines with aligned columns, the first column left, others right."""
    table = [list(row) for row in rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    lines = []
    for first, *others in table:
        lines.append("  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]).rstrip())
    return "\n".join(lines)
