"""Audit of encoders' mean bias: norms, means on a corpus, languages, prompts, beside their scores.

    python -m research.mean_bias_audit --suite mean-bias-panel --corpus sentences.txt --out build/audit

With --ladder, the debiasing methods of the paper are scored too; with --mean-sentences, R1 and R2 whose means come from
only so many sentences.
"""

import sys

from benchmarks.starters import show
from lathe.training.evaluation.report import format_report, write_report
from lathe.training.evaluation.run import evaluate
from research.arguments import build_request, evaluation_parser
from research.mean_bias_audit.probe import audit_group
from research.mean_bias_audit.report import report_audit


def main() -> None:
    """Audit the encoders, write the report and print it."""
    parser = evaluation_parser(__doc__)
    parser.add_argument("--ladder", action="store_true", help="score the nine methods of the paper")
    parser.add_argument("--mean-sentences", type=int, nargs="*", default=[], help="numbers of sentences, from 2")
    given = parser.parse_args()

    counts = given.mean_sentences
    request = build_request(given, inspect=audit_group, ladder=given.ladder or bool(counts), sentences=counts)
    results = evaluate(request, show)
    supplements = [report_audit(results)]
    findings, files = write_report(results, supplements)

    print(format_report(results, findings, supplements))
    print("\n".join(map(str, files)), file=sys.stderr)


if __name__ == "__main__":
    main()
