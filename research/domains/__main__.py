"""Comparison of two suites of data sets: are they different domains? The questions of FinMTEB.

python -m research.domains --suite finance --against general --encoder all-MiniLM-L6-v2:layers,bag-of-words --out out
"""

import sys
from dataclasses import replace

from benchmarks.starters import print_progress
from lathe.training.evaluation.suites import open_suite
from lathe.transforms.progress import part_of
from research.arguments import build_request, evaluation_parser
from research.domains import compare, format_terminal, require_different, write_comparison
from research.fitted_methods.evaluation import FittedRequest, evaluate_fitted
from research.paper_findings.report import write_report


def main() -> None:
    """Evaluate on two suites, each into its own folder, then write and print their comparison."""
    parser = evaluation_parser(__doc__)
    parser.add_argument("--against", required=True, help="the other suite")
    arguments = parser.parse_args()

    request: FittedRequest = build_request(arguments)
    against = open_suite(arguments.against)
    require_different(request.suite, against)
    first = evaluate_fitted(replace(request, out=request.out / "suite"), part_of(print_progress, 0.0, 0.4))
    second = evaluate_fitted(
        replace(request, suite=against, out=request.out / "against"), part_of(print_progress, 0.4, 0.8)
    )
    comparison = compare(first, second, part_of(print_progress, 0.8, 1.0))
    files = [file for results in (first, second) for file in write_report(results)[1]]
    files += write_comparison(comparison, request.out)

    print(format_terminal(comparison))
    print("\n".join(map(str, files)), file=sys.stderr)


if __name__ == "__main__":
    main()
