"""Time and peak memory of `lathe fit` as the number of texts grows."""

import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.sources.source import open_source

FIT = """
import json, resource, sys, time
import torch
torch.set_num_threads(int(sys.argv[3]))
from pathlib import Path
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.fitting.requests import NewFit, RowSource
from lathe.training.fitting.fit import fit_new_chain
from lathe.transforms import parse_steps

encoder = Encoder(DEFAULT_ENCODER)
loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
request = NewFit(
    name="bench",
    steps=[step.spec() for step in parse_steps("r2,geopres:128,nested=true")],
    source=RowSource(path=sys.argv[1]),
)
begun = time.monotonic()
stages = {}

def note(fraction, message):
    stages[next(word for word in ("encoded", "fitt", "step", "out-of-domain", "held", "certif") if word in message)] = (
        time.monotonic() - begun
    )

with fit_new_chain(request, encoder, Path(sys.argv[2]), note) as fitted:
    seconds = time.monotonic() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"seconds": seconds, "encoding_seconds": stages["encoded"], "peak_mb": peak, "loaded_mb": loaded}))
"""


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--source", default="pydoc:", help="texts; by default the built-in ones")
    options.add_argument("--counts", type=int, nargs="+", default=None, help="how many texts to fit on")
    arguments = options.parse_args()
    counts = arguments.counts or ([250, 500] if arguments.quick else [1000, 2000, 5000, 10_000])
    texts = [t for batch in open_source(arguments.source).batches() for t in batch.values if isinstance(t, str)]
    if max(counts) > len(texts):
        sys.exit(f"{arguments.source} holds {len(texts)} texts, fewer than {max(counts)}")
    figures = [measure(list(islice(texts, count))) for count in counts]
    header = ["texts", "seconds", "of it encoding", "texts/s", "peak MB", "MB above the loaded encoder"]
    rows = [
        [
            f"{f['texts']:,}",
            f"{f['seconds']:.0f}",
            f"{f['encoding_seconds']:.0f}",
            f"{f['texts'] / f['encoding_seconds']:.0f}",
            f"{f['peak_mb']:.0f}",
            f"{f['peak_mb'] - f['loaded_mb']:.0f}",
        ]
        for f in figures
    ]
    print(markdown_table(header, rows))
    print("raw figures:", write_report(arguments.out, "fit", figures), file=sys.stderr)


def measure(texts: list[str]) -> dict[str, Any]:
    """Run one fit in a process of its own, so that its peak memory can be measured, and return its figures."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "texts.jsonl"
        source.write_text("\n".join(json.dumps({"text": text}) for text in texts))
        arguments = [str(source), str(Path(folder) / "work"), str(os.cpu_count() or 1)]
        ended = subprocess.run([sys.executable, "-c", FIT, *arguments], check=True, capture_output=True, text=True)
    figures: dict[str, Any] = json.loads(ended.stdout)
    return {"texts": len(texts), "threads": os.cpu_count() or 1} | figures


if __name__ == "__main__":
    main()
