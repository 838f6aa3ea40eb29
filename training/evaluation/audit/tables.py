"""Tables of an audit, as rows of text cells with the header first."""

from collections.abc import Iterable

from training.evaluation.audit.findings import AuditFindings
from training.evaluation.audit.profile import Profile, RandomControl

Rows = list[list[str]]


def audit_tables(findings: AuditFindings) -> dict[str, Rows]:
    """Build every table for which the findings have data; return rows of cells by title, header first."""
    found = {
        "Norms before they are brought to unit length": norm_rows(findings),
        "‖μ‖ by sample, and its expectation": growth_rows(findings),
        "μ by language": language_rows(findings),
        "μ by prompt": prompt_rows(findings),
        "μ and the first principal component": direction_rows(findings),
        "Random direction by seed, in points": random_rows(findings.random_controls),
        "Where R2 stands out, by encoder": encoder_rows(findings.profile),
        "Where R2 stands out, by task": task_rows(findings.profile),
    }
    return {name: rows for name, rows in found.items() if len(rows) > 1}


def overview(findings: AuditFindings) -> Rows:
    """Build the table for the terminal: norms, ‖μ‖, noise floor, first principal component; a row for each encoder."""
    rows = [["encoder", "norm", "unit", "‖μ‖", "chance", "PC1 centred", "PC1 uncentred"]]
    for name, audit in findings.encoders.items():
        norms = ["–", "–"]
        if audit.norms is not None:
            norms = [f"{audit.norms.mean:.3f} ±{audit.norms.std:.3f}", percent(audit.norms.unit)]
        mean = ["–"] * 4
        if audit.corpus is not None:
            found = audit.corpus.direction
            mean = [shown(value) for value in (found.mean_norm, found.noise_floor, found.centered, found.uncentered)]
        rows.append([name, *norms, *mean])
    return rows


def norm_rows(findings: AuditFindings) -> Rows:
    """Build the table of norms of each encoder's raw vectors (the mean-bias paper's Appendix C)."""
    rows = [["encoder", "texts", "mean", "std", "min", "max", "unit", "zero"]]
    for name, audit in findings.encoders.items():
        if audit.norms is not None:
            one = audit.norms
            lengths = [f"{value:.4f}" for value in (one.mean, one.std, one.min, one.max)]
            rows.append([name, str(one.texts), *lengths, percent(one.unit), str(one.zero_rows)])
    return rows


def growth_rows(findings: AuditFindings) -> Rows:
    """Build the table of ‖μ_n‖ by sample size for each encoder."""
    header = ["‖μ_n‖", "√(tr Σ / n)", "cos with all", "‖μ_n‖² / expected", "consecutive, × squared error"]
    rows = [["encoder", "sentences", "draws", *header]]
    for name, audit in findings.encoders.items():
        for point in audit.corpus.growth if audit.corpus else ():
            figures = (point.norm, point.noise_floor, point.cosine, point.ratio, point.consecutive)
            rows.append([name, f"{point.n:,}", str(point.draws), *map(shown, figures)])
    return rows


def language_rows(findings: AuditFindings) -> Rows:
    """Build the table of means by language, with the running mean (Appendix E of the mean-bias paper)."""
    rows = [["encoder", "language", "‖μ‖", "chance", "cos with first", "texts so far", "running ‖μ‖", "cos with final"]]
    for name, audit in findings.encoders.items():
        if audit.languages is not None:
            for count, one in enumerate(audit.languages.means, 1):
                own = [shown(value) for value in (one.norm, one.noise_floor, one.cosine)]
                running = [shown(value) for value in (one.running_norm, one.running_cosine)]
                rows.append([name, one.language, *own, f"{count * audit.languages.texts:,}", *running])
    return rows


def prompt_rows(findings: AuditFindings) -> Rows:
    """Build the table of means by prompt (Appendix E of the mean-bias paper)."""
    rows = [["encoder", "prompt", "texts", "‖μ‖", "chance", "cos without", "written"]]
    for name, audit in findings.encoders.items():
        if audit.prompts is not None:
            texts = f"{audit.prompts.texts:,}"
            rows.append([name, "none", texts, shown(audit.prompts.plain_norm), "", "", ""])
            for one in audit.prompts.means:
                values = [shown(value) for value in (one.norm, one.noise_floor, one.cosine)]
                rows.append([name, one.name, texts, *values, repr(one.prompt)])
    return rows


def direction_rows(findings: AuditFindings) -> Rows:
    """Build the table of cosines between the mean and the first principal component (Appendix D)."""
    rows = [["encoder", "sentences", "zero", "‖μ‖", "chance", "|cos| centred", "|cos| uncentred"]]
    for name, audit in findings.encoders.items():
        if audit.corpus is not None:
            one = audit.corpus.direction
            values = [shown(value) for value in (one.mean_norm, one.noise_floor, one.centered, one.uncentered)]
            rows.append([name, f"{one.rows:,}", f"{one.zero_rows:,}", *values])
    return rows


def random_rows(found: Iterable[RandomControl]) -> Rows:
    """Build the table of score differences of a random direction over its seeds, in points (Appendix F)."""
    rows = [["encoder", "tasks", "seeds", "mean", "std", "min", "max", "R2"]]
    for one in found:
        values = list(one.differences.values())
        figures = (one.mean, one.std, min(values), max(values), one.r2)
        cells = ["–" if value is None else f"{value:+.4f}" for value in figures]
        rows.append([one.encoder, str(one.tasks), str(len(values)), *cells])
    return rows


def encoder_rows(found: Profile) -> Rows:
    """Build the table of shares of each encoder's tasks with outliers of R2 (Table 6), largest upward share first."""
    rows = [["encoder", "‖μ‖", "tasks", "z > 2", "z < −2"]]
    for one in sorted(found.encoders, key=lambda one: -one.up):
        rows.append([one.encoder, shown(one.mean_norm), str(one.tasks), percent(one.up), percent(one.down)])
    return rows


def task_rows(found: Profile) -> Rows:
    """Build the table of shares of encoders with outliers of R2 by task (Table 7), without tasks that have none."""
    rows = [["task", "type", "encoders", "z > 2", "z < −2"]]
    for one in sorted(found.tasks, key=lambda one: (-one.up, one.down)):
        if one.up or one.down:
            rows.append([one.task, one.type, str(one.encoders), percent(one.up), percent(one.down)])
    return rows


def shown(value: float | None) -> str:
    """Format a value with three decimals, or as a dash if it is None."""
    return "–" if value is None else f"{value:.3f}"


def percent(value: float) -> str:
    """Format a share as whole per cent."""
    return f"{100 * value:.0f} %"
