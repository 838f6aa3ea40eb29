"""Measures variants of REZE that Lathe does not have, beside the methods of an experiment.

    python -m research.reze_variants --config experiment.yaml --variant averaged --name reze-variants

The file is that of `research.reze_experiment`; without --variant, all are measured. A stopped run goes on where it was.
"""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import orjson

from benchmarks.report import parser, write_report
from benchmarks.starters import print_progress
from lathe.training.encoder.encoder import Encoder
from lathe.training.finetuning.job import read_settings
from research.arguments import find_spec
from research.reze_experiment.conditions import build_conditions
from research.reze_experiment.findings import compute_findings
from research.reze_experiment.plan import build_plan
from research.reze_experiment.report import format_terminal, to_json
from research.reze_experiment.run import Experiment, read_results
from research.reze_experiment.settings import ExperimentSettings
from research.reze_experiment.unit import Unit
from research.reze_variants.variants import VariantWork, build_variants


def main() -> None:
    """Run the experiment with its methods and the variants, print the averages, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--config", type=Path, required=True, help="the experiment's YAML")
    options.add_argument("--variant", action="append", default=[], help="variant to measure; all if none is named")
    options.add_argument("--name", default="reze-variants", help="name of the raw figures")
    arguments = options.parse_args()
    settings = read_settings(arguments.config, ExperimentSettings)
    variants = [one for one in build_variants(settings) if not arguments.variant or one.method in arguments.variant]
    if unknown := set(arguments.variant) - {one.method for one in variants}:
        sys.exit(f"there is no variant {min(unknown)!r}")
    work = arguments.out / arguments.name
    spec = find_spec(settings.encoder)
    base = replace(spec, dtype="float32", compile=False, max_length=settings.training.max_length or spec.max_length)
    encoder = Encoder(base)
    plan = build_plan(settings, base, None, encoder, work)
    first = build_conditions(settings)[0].method
    units: list[Unit] = []
    for unit in plan.units:
        units.append(unit)
        if unit.condition.method == first:
            units += [replace(unit, condition=variant) for variant in variants]
    problems = plan.problems + [problem for number, unit in enumerate(units) for problem in run(unit, number, units)]
    experiment = Experiment(settings, encoder.describe(), plan.prepared, [], units, list(read_results(units)), problems)
    findings = compute_findings(experiment)
    print(format_terminal(experiment, findings))
    figures = orjson.loads(orjson.dumps(to_json(experiment, findings), option=orjson.OPT_SERIALIZE_NUMPY))
    print("raw figures:", write_report(arguments.out, arguments.name, figures), file=sys.stderr)


def run(unit: Unit, number: int, units: list[Unit]) -> list[str]:
    """Run what a unit lacks, and return messages about cells that failed."""
    if not unit.list_missing():
        return []
    print_progress(number / len(units), f"{unit.target.name}, {unit.condition.method}, seed {unit.training.seed}")
    work = VariantWork(unit, unit.out / "work" / unit.key)
    work.run()
    shutil.rmtree(work.folder, ignore_errors=True)
    return work.problems


if __name__ == "__main__":
    main()
