import json
import re

import numpy as np
import pytest

from research.mean_bias_audit.findings import AuditFindings, compute_audit_findings
from research.mean_bias_audit.means import (
    Direction,
    LanguageMean,
    MeanPoint,
    Norms,
    PromptMean,
)
from research.mean_bias_audit.profile import Profile, measure_random_controls, profile_outliers
from research.mean_bias_audit.report import format_audit, write_audit
from research.mean_bias_audit.stored_audit import (
    Audit,
    CorpusMean,
    Languages,
    Prompts,
)
from research.mean_bias_audit.summary import summarize_audit
from research.mean_bias_audit.tables import build_audit_tables, build_overview_table

TASKS = [f"t{place}" for place in range(8)]
RAW = [0.5] * 8
GAINS = [0.01, -0.01] * 3 + [0.01, 0.2]
"""Of eight tasks in score; the last is the one that stands out."""
UNSCORED = Profile([], [], {})
SPOTLESS = Audit(
    Norms(200, 1, 0, 1, 1, 1, 0),
    CorpusMean(
        (MeanPoint(10, 10, 0.4, 0.3, 0.7, 0.13, 1.02, 1.6), MeanPoint(30, 10, 0.3, 0.2, 0.991, 0.1, 0.97, 2.5))
        + (MeanPoint(100, 1, 0.26, 0.13, 1, 0.07, 1, None),),
        Direction(100, 0, 0.26, 0.12, 0.266, 0.976),
    ),
    Languages(
        60, (LanguageMean("en", 0.3, 0.1, 1, 0.3, 0.98), LanguageMean("de", 0.4, 0.1, 0.9, 0.34, 1)), {"fr": 3}, ("m",)
    ),
    Prompts(50, 0.25, True, (PromptMean("q", "query: ", 0.5, 0.1, 0.5), PromptMean("p", "p: ", 0.3, 0.1, 0.9))),
    (),
)


def summarize_one(audit=SPOTLESS, name="e5"):
    """Return the summary of one encoder's audit, without scores."""
    return summarize_audit(AuditFindings({name: audit}, [], UNSCORED))


@pytest.fixture
def gained(table):
    """Return a function that builds an encoder's scores under R2 from its gains."""
    return lambda encoder, gains: table(encoder, TASKS, control=RAW, R2=[0.5 + gain for gain in gains])


def test_profile_outliers_finds_tasks_over_two_deviations_from_an_encoders_mean_difference(grid_of, gained):
    down = [-gain for gain in GAINS[::-1]]
    grid = grid_of(gained("one", GAINS) | gained("two", down), norms={"one": 0.3})
    found = profile_outliers(grid)
    z = (np.array(GAINS) - np.mean(GAINS)) / np.std(GAINS, ddof=1)
    assert list(found.z["one"].values()) == pytest.approx(z)
    assert z[-1] > 2 > np.abs(z[:-1]).max()
    one, two = found.encoders
    assert (one.encoder, one.mean_norm, one.tasks, one.up, one.down) == ("one", 0.3, 8, 1 / 8, 0)
    assert (two.mean_norm, two.up, two.down) == (None, 0, 1 / 8)
    shares = {task.task: (task.encoders, task.up, task.down) for task in found.tasks}
    assert shares == {task: (2, 0, 0) for task in TASKS} | {"t7": (2, 0.5, 0), "t0": (2, 0, 0.5)}


def test_measure_random_controls_gives_each_seeds_difference_mean_and_spread(grid_of, table):
    """The mean-bias paper's Appendix F: four seeds of one encoder, their mean .005 and spread .005 points."""
    gains = {42: 0.0015, 2: 0.0009, 3: 0.0072, 4: 0.0106}
    scores = {f"random, seed {seed}": [0.5 + gain / 100] * 8 for seed, gain in gains.items()}
    scores = {"control": RAW, "R2": [0.5 + 0.567 / 100] * 8} | scores
    (found,) = measure_random_controls(grid_of(table("one", TASKS, **scores)))
    assert found.differences == pytest.approx({f"random, seed {seed}": gain for seed, gain in gains.items()})
    assert (round(found.mean, 3), round(found.std, 3), round(found.r2, 3)) == (0.005, 0.005, 0.567)
    assert found.std == pytest.approx(np.std(list(gains.values()), ddof=1))
    findings = AuditFindings({}, [found], UNSCORED)
    (row,) = build_audit_tables(findings)["Random direction by seed, in points"].cells[1:]
    assert row[:3] + row[4:] == ["one", "8", "4", "+0.0047", "+0.0009", "+0.0106", "+0.5670"]
    assert summarize_audit(findings) == [
        "A random direction changes the score of one by +0.005 points ± 0.005 among 4 seeds, from +0.001 to +0.011; "
        "R2 +0.567."
    ]


def test_summarize_audit_of_a_typical_encoder():
    assert summarize_one() == [
        "e5 gives unit vectors (norm 1.000 ± 0.000 over 200 texts).",
        "‖μ‖ of e5 is 0.260 over 100 sentences, more than chance (0.120); the first principal component lies at |cos| "
        "= 0.976 to μ before centring and 0.266 after.",
        "30 sentences give the mean direction of e5 to a cosine of 0.991; from 10 to 30 sentences, ‖μ_n‖² is 0.97 to "
        "1.02 times ‖μ‖² + tr Σ / n, as it must be where they are drawn at random.",
        "The mean of 10 consecutive sentences of the corpus under e5 has 1.60 times the squared error of that of as "
        "many random ones.",
        "Languages with fewer than 50 texts are left out of the means by language: fr (3).",
        "Data sets of no single language are left out of the means by language: m.",
        "‖μ‖ of e5 is 0.300 in en and 0.340 over all 2 languages of 60 texts each, at a cosine of 0.980 (11.5°); the "
        "farthest from it is de, at 0.900.",
        "e5 has no prompts of its own; of generic ones, 'query: ' moves its mean most: ‖μ‖ is 0.500 with it and 0.250 "
        "without, at a cosine of 0.500 (60.0°).",
    ]


def test_summarize_audit_says_where_r2_stands_out(grid_of, gained):
    found = summarize_audit(
        AuditFindings({}, [], profile_outliers(grid_of(gained("one", GAINS) | gained("two", GAINS))))
    )
    assert found[0].startswith("R2's differences lie more than two standard deviations above an encoder's own mean on ")
    assert "on 12.5 % of its tasks and below on 0.0 %, on average over 2 encoders" in found[0]
    assert found[1:] == ["The task that is above on most encoders is t7, on 100 % of 2."]


@pytest.fixture
def audited(build, table, gained, tmp_path):
    """Return results of two encoders with debiasing methods and an audit.

    One audit measured nothing.
    """
    values = gained("<b>one", GAINS) | gained("two", GAINS[::-1])
    values |= {(e, "random, seed 2", task): 0.5 for e in ("<b>one", "two") for task in TASKS}
    results = build(values, out=tmp_path, norms={"<b>one": 0.2})
    failed = Audit(None, None, None, None, ("nothing can be measured",))
    return results, {"<b>one": SPOTLESS, "two": failed}


def test_the_audit_is_in_the_json_the_html_page_and_the_terminal_report(audited):
    results, audits = audited
    findings = compute_audit_findings(results, audits)
    write_audit(results, findings, [])
    out = results.request.out
    found = json.loads((out / "audit.json").read_text())
    assert found["encoders"]["<b>one"]["corpus"]["direction"]["centered"] == 0.266
    assert found["profile"]["z"]["two"]["t0"] == findings.profile.z["two"]["t0"]
    assert [one["mean"] for one in found["random_controls"]] == [0, 0]

    audit = (out / "audit.html").read_text()
    assert audit.count("<svg") == 2
    assert "<b>" not in audit and "&lt;b&gt;one gives unit vectors (norm 1.000" in audit
    assert re.findall(r"<h2>(.*?)</h2>\s*<div", audit) == list(build_audit_tables(findings))
    assert len(build_audit_tables(findings)) == 8

    shown = format_audit(findings, [])
    assert "\n".join(summarize_audit(findings)) in shown
    assert ["two", "–", "–", "–", "–", "–", "–"] in build_overview_table(findings).cells
    assert "two: nothing can be measured." in shown
