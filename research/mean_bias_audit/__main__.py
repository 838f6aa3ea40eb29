"""Audit of encoders' mean bias: norms, means on a corpus, languages, prompts, beside their scores.

    python -m research.mean_bias_audit --suite mean-bias-panel --corpus sentences.txt --out build/audit

With --ladder, the debiasing methods of the paper are scored too; with --mean-sentences, R1 and R2 whose means come from
only so many sentences.
"""

import sys

from benchmarks.starters import print_progress
from research.arguments import build_request, evaluation_parser
from research.few_sentences import compare_estimated_means
from research.mean_bias_audit.evaluation import AuditRequest, evaluate_and_audit
from research.mean_bias_audit.findings import compute_audit_findings
from research.mean_bias_audit.report import format_audit, write_audit
from research.paper_findings.grid import Grid
from research.paper_findings.report import format_report, write_report


def main() -> None:
    """Audit the encoders, write the reports and print them."""
    parser = evaluation_parser(__doc__)
    parser.add_argument("--ladder", action="store_true", help="score the nine methods of the paper")
    parser.add_argument("--mean-sentences", type=int, nargs="*", default=[], help="numbers of sentences, from 2")
    arguments = parser.parse_args()

    counts = arguments.mean_sentences
    request = build_request(arguments, AuditRequest, ladder=arguments.ladder or bool(counts), sentences=counts)
    results, audits = evaluate_and_audit(request, print_progress)
    findings, files = write_report(results)
    audit, estimation = compute_audit_findings(results, audits), compare_estimated_means(Grid(results))
    files += write_audit(results, audit, estimation)

    print(format_report(results, findings))
    print(format_audit(audit, estimation))
    print("\n".join(map(str, files)), file=sys.stderr)


if __name__ == "__main__":
    main()
