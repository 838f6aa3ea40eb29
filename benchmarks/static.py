"""Recall and throughput of a static model compared with the default encoder and the chain `compact`."""

import sys
import tempfile
from pathlib import Path

from benchmarks.report import markdown_table, parser, write_report
from lathe.service.chains.starters import STARTERS
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.export.static_model import certify_static, export_static, split_texts
from lathe.transforms import Chain


def main() -> None:
    """Fit a static model to each corpus, measure it on the held-out texts of all, print a table, write the results."""
    options = parser(__doc__)
    options.add_argument("--corpus", action="append", metavar="NAME=SOURCE", help="more texts to measure on")
    given = options.parse_args()
    encoder = Encoder(DEFAULT_ENCODER, "cpu")
    chain = Chain.load(STARTERS / "compact" / "1")
    corpora = dict(item.split("=", 1) for item in ["pydoc=pydoc:", *(given.corpus or [])])
    figures = []
    for fitted_to, source in corpora.items():
        with tempfile.TemporaryDirectory() as folder:
            export_static(chain, encoder, Path(folder) / "model", "compact@1", source)
            static = Encoder(EncoderSpec("static", str(Path(folder) / "model")), "cpu")
            for name, other in corpora.items():
                texts = split_texts(other)[1][: 200 if given.quick else None]
                figures.append({"fitted_to": fitted_to} | certify_static(chain, encoder, static, texts, name))
    keys = ("recall_at_10", "recall_at_10_rescored_4x", "local_spearman")
    rows = [[found["fitted_to"], found["source"], *(f"{found[key]:.3f}" for key in keys)] for found in figures]
    print(markdown_table(["fitted to", "measured on", *keys], rows))
    print("raw figures:", write_report(given.out, "static", figures), file=sys.stderr)


if __name__ == "__main__":
    main()
