"""The finance recipe without synthesis: in-batch and hard negatives, REZE, and both, on finance and general tasks.

Each target is left out of its own training, with all pairs that share a text with its test. Every training takes the
same pairs; what differs is whether they have mined hard negatives, and whether REZE's regulariser is there. Stopped, it
goes on from its last whole training:

    python -m research.recipe --data /path/to/data --work build/recipe --out research/results
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.comparison import mean_interval
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.evaluation.worker import Workers
from lathe.training.finetuning.job import TargetSettings, TrainingJob
from lathe.training.finetuning.mining import mine_sources
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.mixture_builder import read_sources
from lathe.training.finetuning.opening import open_target
from lathe.training.finetuning.regularizers.registry import create_regularizer
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.finetuning.run import save_model
from lathe.training.finetuning.trainer import train
from research.category_comparison import TaskScores, compare_categories
from research.reze_experiment.scoring import Scorer
from research.reze_experiment.targets import Target

TARGETS = ("fiqa_qa", "tatqa", "banking77")
GENERAL = ("stsb", "quora_pairs", "mrpc", "trec_qa", "cranfield", "bbc_news", "sst2")
ARMS = {
    "in-batch negatives": (False, False),
    "hard negatives": (True, False),
    "REZE": (False, True),
    "both": (True, True),
}
"""Whether there are hard negatives, and the regulariser."""
BASE, BEFORE = "base", -1
LIMITS = {"finance": 500, "general": 200}
"""Rows, queries or documents of each test."""


@dataclass(frozen=True)
class Plan:
    """What is measured: where the data lie, pairs of each source, targets, general tasks, seeds."""

    data: Path
    work: Path
    cap: int
    targets: tuple[str, ...]
    general: tuple[str, ...]
    seeds: tuple[int, ...]
    limits: dict[str, int]

    def job(self, target: str, seed: int = 0) -> TrainingJob:
        """Return the training with a target left out."""
        finance = self.data / "finance"
        return TrainingJob.model_validate(
            {
                "sources": [{"folder": finance}],
                "target": {"folder": finance / target},
                "overlap": "drop",
                "cap": self.cap,
                "negatives": {"num_negatives": 2, "range_min": 1, "relative_margin": 0.05, "allow_fewer": True},
                "training": {"learning_rate": 2e-5, "batch_size": 8, "max_length": 128, "seed": seed},
            }
        )

    @property
    def spec(self) -> EncoderSpec:
        """The base model, at the length that is trained on."""
        return replace(DEFAULT_ENCODER, max_length=128)


@dataclass(frozen=True)
class Unit:
    """Training of one arm on one target, with its result.

    Without an arm it is the base model.
    """

    plan: Plan
    target: str
    arm: str
    seed: int
    mixture: Mixture | None = None

    @property
    def path(self) -> Path:
        """Where its scores are kept."""
        name = f"{self.target}-{self.arm.replace(' ', '_')}-{self.seed}-{self.plan.cap}.json"
        return self.plan.work / "units" / name


def main() -> None:
    """Measure, print the table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--data", type=Path, required=True, help="a folder with finance/ and general/")
    options.add_argument("--work", type=Path, default=Path("build/recipe"), help="folder that a stopped run goes on in")
    options.add_argument("--processes", type=int, default=2, help="trainings at once, of one thread each")
    arguments = options.parse_args()
    plan = Plan(arguments.data, arguments.work, 80, TARGETS, GENERAL, (0, 1, 2), LIMITS)
    if arguments.quick:
        plan = replace(plan, cap=8, targets=TARGETS[:1], general=GENERAL[:2], seeds=(0,))
        plan = replace(plan, limits={"finance": 60, "general": 60})
    units = list(planned(plan))
    missing = [unit for unit in units if not unit.path.is_file()]
    with Workers(arguments.processes) as workers:
        for done, (index, result) in enumerate(workers.run([(measure, (unit,)) for unit in missing]), 1):
            if isinstance(result, Exception):
                raise SystemExit(f"{missing[index].path.stem}: {result}")
            print(f"{done} of {len(missing)}: {missing[index].path.stem}", file=sys.stderr)
    figures = found(plan, units) | {"plan": described(plan)}
    print(markdown_table(["", *figures["averages"]], table(figures["averages"])))
    print("raw figures:", write_report(arguments.out, "recipe", figures), file=sys.stderr)


def described(plan: Plan) -> dict[str, Any]:
    """Return the plan without folders of this machine."""
    return {name: value for name, value in asdict(plan).items() if name not in ("data", "work")}


def planned(plan: Plan) -> Iterator[Unit]:
    """Plan every training, each target's base model first.

    The negatives of each target are mined once.
    """
    encoder = Encoder(plan.spec)
    for target in plan.targets:
        job = plan.job(target)
        builder = read_sources(job, open_target(TargetSettings(folder=plan.data / "finance" / target)))
        plain = builder.build()
        assert job.negatives is not None  # the plan's own
        mine_sources(builder, job.negatives, encoder, plan.work / "reference", silent)
        hard = builder.build()
        create_regularizer("reze", RegularizerSettings()).prepare(encoder, plain, *folders(plan, target), silent)
        yield Unit(plan, target, BASE, BEFORE)
        for seed in plan.seeds:
            for arm, (negatives, _) in ARMS.items():
                yield Unit(plan, target, arm, seed, hard if negatives else plain)


def folders(plan: Plan, target: str) -> tuple[Path, Path]:
    """Return the folders of the regulariser's targets, and of the vectors they are made of."""
    return plan.work / "targets" / target, plan.work / "reference"


def measure(unit: Unit) -> None:
    """Train and score one unit, and write its file."""
    plan, spec, steps = unit.plan, unit.plan.spec, 0
    encoder = Encoder(spec)
    if unit.mixture is not None:
        job = plan.job(unit.target, unit.seed)
        regularizer = create_regularizer("reze" if ARMS[unit.arm][1] else "pft", RegularizerSettings())
        regularizer.prepare(encoder, unit.mixture, *folders(plan, unit.target), silent)
        model, folder = load_model(spec, None).float(), plan.work / "models" / unit.path.stem
        steps = train(model, unit.mixture, job.training, folder, silent, regularizer, checkpoints=False).steps
        save_model(model, folder / "model")
        encoder = Encoder(replace(spec, model=str(folder / "model")))
    scores = {name: scored(encoder, plan, suite, name) for suite, name in tasks(plan, unit.target)}
    unit.path.parent.mkdir(parents=True, exist_ok=True)
    unit.path.write_bytes(orjson.dumps({"scores": scores, "steps": steps}, option=orjson.OPT_INDENT_2))


def tasks(plan: Plan, target: str) -> list[tuple[str, str]]:
    """Return the suites and data sets that a target's trainings are scored on."""
    return [("finance", target), *(("general", name) for name in plan.general)]


def scored(encoder: Encoder, plan: Plan, suite: str, name: str) -> dict[str, Any]:
    """Return the score of one data set's test, with its category."""
    settings = TargetSettings(folder=plan.data / suite / name)
    scorer = Scorer(Target.open(settings), plan.limits[suite])
    score = scorer.score(encoder.encode(scorer.texts, prompt_name=NO_PROMPT).vectors).score
    return {"suite": suite, "category": scorer.task.metadata.type, "metric": scorer.metric, "score": score}


def found(plan: Plan, units: list[Unit]) -> dict[str, Any]:
    """Return averages by arm and suite with intervals over seeds, differences to the base, and tests by category."""
    values = {(u.target, u.arm, u.seed): orjson.loads(u.path.read_bytes())["scores"] for u in units}
    averages: dict[str, Any] = {}
    for suite in ("finance", "general"):
        base = {t: named(values[t, BASE, BEFORE], suite) for t in plan.targets}
        rows = {BASE: {"score": asdict(mean_interval(means(base, 1)))}}
        for arm in ARMS:
            by_seed = [{t: named(values[t, arm, seed], suite) for t in plan.targets} for seed in plan.seeds]
            after = np.concatenate([means(one, 1) for one in by_seed])
            rows[arm] = {
                "score": asdict(mean_interval(after)),
                "less base": asdict(mean_interval(after - means(base, 1))),
            }
        averages[suite] = rows
    return {"averages": averages, "tests": {arm: tested(plan, values, arm) for arm in ARMS}, "scores": flat(values)}


def named(scores: dict[str, Any], suite: str) -> dict[str, float]:
    """Return the scores of a suite × 100."""
    return {name: 100 * one["score"] for name, one in scores.items() if one["suite"] == suite}


def means(by_target: dict[str, dict[str, float]], count: int) -> Any:
    """Return the mean over tasks and targets, as an array of `count`."""
    return np.full(count, np.mean([value for some in by_target.values() for value in some.values()]))


def tested(plan: Plan, values: dict[Any, Any], arm: str) -> dict[str, Any]:
    """Return paired t-tests of an arm against the base, by category of each suite, of scores averaged over seeds."""
    rows: dict[str, list[TaskScores]] = {"finance": [], "general": []}
    for target in plan.targets:
        for name, one in values[target, BASE, BEFORE].items():
            after = float(np.mean([values[target, arm, seed][name]["score"] for seed in plan.seeds]))
            task = name if one["suite"] == "finance" else f"{name} without {target}"
            rows[one["suite"]].append(TaskScores(task, one["category"], one["score"], after))
    return {suite: [asdict(one) for one in compare_categories(some)] for suite, some in rows.items()}


def flat(values: dict[Any, Any]) -> list[dict[str, Any]]:
    """Return every score, a row each."""
    return [
        {"target": target, "arm": arm, "seed": seed, "task": name} | one
        for (target, arm, seed), scores in values.items()
        for name, one in scores.items()
    ]


def table(averages: dict[str, Any]) -> list[list[str]]:
    """Return the cells of a table, arms by suites."""
    return [[arm, *(cell(averages[suite][arm]) for suite in averages)] for arm in (BASE, *ARMS)]


def cell(one: dict[str, Any]) -> str:
    """Return a score, and how far from the base it is."""
    if "less base" not in one:
        return f"{one['score']['value']:.1f}"
    less = one["less base"]
    half = "" if less["high"] is None else f" ± {less['high'] - less['value']:.1f}"
    return f"{one['score']['value']:.1f} ({less['value']:+.1f}{half})"


def silent(fraction: float, sentence: str) -> None:
    """Do nothing: trainings are counted instead."""


if __name__ == "__main__":
    main()
