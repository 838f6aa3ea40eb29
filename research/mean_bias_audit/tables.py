"""Tables of an audit."""

from collections.abc import Iterable
from dataclasses import asdict

from lathe.training.reporting.tables import Table
from lathe.training.reporting.text import format_percent
from research.mean_bias_audit.findings import AuditFindings
from research.mean_bias_audit.profile import Profile, RandomControl


def build_audit_tables(findings: AuditFindings) -> dict[str, Table]:
    """Build every table for which the findings have data, and return tables by title."""
    tables = {
        "Norms before they are brought to unit length": _build_norm_table(findings),
        "‖μ‖ by sample, and its expectation": _build_growth_table(findings),
        "μ by language": _build_language_table(findings),
        "μ by prompt": _build_prompt_table(findings),
        "μ and the first principal component": _build_direction_table(findings),
        "Random direction by seed, in points": _build_random_table(findings.random_controls),
        "Where R2 stands out, by encoder": _build_encoder_table(findings.profile),
        "Where R2 stands out, by task": _build_task_table(findings.profile),
    }
    return {title: table for title, table in tables.items() if table}


def build_overview_table(findings: AuditFindings) -> Table:
    """Build the table for the terminal: norms, ‖μ‖, noise floor, first principal component.

    A row for each encoder.
    """
    rows = []
    for name, audit in findings.encoders.items():
        norms, found = audit.norms, audit.corpus.direction if audit.corpus else None
        rows.append(
            {
                "encoder": name,
                "norm": f"{norms.mean:.3f} ±{norms.std:.3f}" if norms else None,
                "unit": format_percent(norms.unit) if norms else None,
                "‖μ‖": found and found.mean_norm,
                "chance": found and found.noise_floor,
                "PC1 centred": found and found.centered,
                "PC1 uncentred": found and found.uncentered,
            }
        )
    return Table.from_records(rows, default=".3f")


def _build_norm_table(findings: AuditFindings) -> Table:
    """Build the table of norms of each encoder's raw vectors (the mean-bias paper's Appendix C)."""
    names = {"zero_rows": "zero"}
    return Table.from_records(
        (
            {"encoder": name} | {names.get(field, field): value for field, value in asdict(audit.norms).items()}
            for name, audit in findings.encoders.items()
            if audit.norms is not None
        ),
        {"texts": "d", "unit": format_percent, "zero": "d"},
        ".4f",
    )


def _build_growth_table(findings: AuditFindings) -> Table:
    """Build the table of ‖μ_n‖ by sample size for each encoder."""
    return Table.from_records(
        (
            {
                "encoder": name,
                "sentences": point.n,
                "draws": point.draws,
                "‖μ_n‖": point.norm,
                "√(tr Σ / n)": point.noise_floor,
                "cos with all": point.cosine,
                "‖μ_n‖² / expected": point.ratio,
                "consecutive, × squared error": point.consecutive,
            }
            for name, audit in findings.encoders.items()
            for point in (audit.corpus.growth if audit.corpus else ())
        ),
        {"sentences": ",", "draws": "d"},
        ".3f",
    )


def _build_language_table(findings: AuditFindings) -> Table:
    """Build the table of means by language, with the running mean (Appendix E of the mean-bias paper)."""
    return Table.from_records(
        (
            {
                "encoder": name,
                "language": one.language,
                "‖μ‖": one.norm,
                "chance": one.noise_floor,
                "cos with first": one.cosine,
                "texts so far": count * audit.languages.texts,
                "running ‖μ‖": one.running_norm,
                "cos with final": one.running_cosine,
            }
            for name, audit in findings.encoders.items()
            if audit.languages is not None
            for count, one in enumerate(audit.languages.means, 1)
        ),
        {"texts so far": ","},
        ".3f",
    )


def _build_prompt_table(findings: AuditFindings) -> Table:
    """Build the table of means by prompt (Appendix E of the mean-bias paper)."""
    rows = []
    for name, audit in findings.encoders.items():
        if audit.prompts is not None:
            texts = audit.prompts.texts
            rows.append([name, "none", texts, audit.prompts.plain_norm, "", "", ""])
            for one in audit.prompts.means:
                rows.append([name, one.name, texts, one.norm, one.noise_floor, one.cosine, repr(one.prompt)])
    header = ["encoder", "prompt", "texts", "‖μ‖", "chance", "cos without", "written"]
    return Table.from_rows([header, *rows], {"texts": ","}, ".3f")


def _build_direction_table(findings: AuditFindings) -> Table:
    """Build the table of cosines between the mean and the first principal component (Appendix D)."""
    return Table.from_records(
        (
            {
                "encoder": name,
                "sentences": found.rows,
                "zero": found.zero_rows,
                "‖μ‖": found.mean_norm,
                "chance": found.noise_floor,
                "|cos| centred": found.centered,
                "|cos| uncentred": found.uncentered,
            }
            for name, audit in findings.encoders.items()
            if (found := audit.corpus and audit.corpus.direction)
        ),
        {"sentences": ",", "zero": ","},
        ".3f",
    )


def _build_random_table(controls: Iterable[RandomControl]) -> Table:
    """Build the table of score differences of a random direction over its seeds, in points (Appendix F)."""
    return Table.from_records(
        (
            {
                "encoder": one.encoder,
                "tasks": one.tasks,
                "seeds": len(one.differences),
                "mean": one.mean,
                "std": one.std,
                "min": min(one.differences.values()),
                "max": max(one.differences.values()),
                "R2": one.r2,
            }
            for one in controls
        ),
        {"tasks": "d", "seeds": "d"},
        "+.4f",
    )


def _build_encoder_table(profile: Profile) -> Table:
    """Build the table of shares of each encoder's tasks with outliers of R2 (Table 6), largest upward share first."""
    return Table.from_records(
        (
            {"encoder": one.encoder, "‖μ‖": one.mean_norm, "tasks": one.tasks, "z > 2": one.up, "z < −2": one.down}
            for one in sorted(profile.encoders, key=lambda one: -one.up)
        ),
        {"‖μ‖": ".3f", "tasks": "d"},
        format_percent,
    )


def _build_task_table(profile: Profile) -> Table:
    """Build the table of shares of encoders with outliers of R2 by task (Table 7), largest upward share first.

    Tasks without outliers are left out.
    """
    return Table.from_records(
        (
            {"task": one.task, "type": one.type, "encoders": one.encoders, "z > 2": one.up, "z < −2": one.down}
            for one in sorted(profile.tasks, key=lambda one: (-one.up, one.down))
            if one.up or one.down
        ),
        {"encoders": "d"},
        format_percent,
    )
