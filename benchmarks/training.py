"""Measures the cost of REZE's regularizer: a training step with and without it, and the offline phase."""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.encoder.devices import PROBES, has_bfloat16
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.encoder.unpadding import try_unpadding
from lathe.training.finetuning.loss import ContrastiveLoss
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import NoRegularizer, RegularizerSettings
from lathe.training.finetuning.regularizers.reze import Reze
from lathe.training.sources.source import open_source

SOURCES = 8
"""Number of slices of the texts that stand for data sets: the time of a step does not depend on the texts."""
BATCH = 8


def main() -> None:
    """Measure, print the table, and write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--texts", default="pydoc:", help="a source of texts; their halves are the pairs")
    options.add_argument("--pairs", type=int, default=4000, help="how many pairs the offline phase takes")
    options.add_argument("--rounds", type=int, default=40, help="pairs of steps, one with the regulariser, one without")
    arguments = options.parse_args()
    pairs, rounds = (320, 4) if arguments.quick else (arguments.pairs, arguments.rounds)
    torch.set_num_threads(1)
    mixture = split_texts(arguments.texts, pairs)
    figures = measure(mixture, rounds)
    header = ["pairs", "offline s", "of it encoding", "step, ms", "with the regulariser, ms", "overhead"]
    low, high = figures["overhead_interval"]
    row = [
        f"{len(mixture):,}",
        f"{figures['offline_seconds']:.1f}",
        f"{figures['encoding_seconds']:.1f}",
        f"{1000 * figures['plain_seconds']:.0f}",
        f"{1000 * figures['regularized_seconds']:.0f}",
        f"{figures['overhead']:+.1%} [{low:+.1%}, {high:+.1%}]",
    ]
    print(markdown_table(header, [row]))
    print("raw figures:", write_report(arguments.out, "training", figures), file=sys.stderr)


def split_texts(written: str, count: int) -> Mixture:
    """Split texts in two: the first half is the anchor, the second its positive."""
    texts = [text for batch in open_source(written).batches() for text in batch.values if isinstance(text, str)]
    words = [text.split() for text in texts if len(text.split()) > 1][:count]
    return Mixture(
        anchors=[" ".join(part[: len(part) // 2]) for part in words],
        positives=[" ".join(part[len(part) // 2 :]) for part in words],
        sources=np.arange(len(words), dtype=np.int64) * SOURCES // len(words),
        names=[f"slice {number}" for number in range(SOURCES)],
        reports=[],
    )


def measure(mixture: Mixture, rounds: int) -> dict[str, Any]:
    """Measure the offline phase, and steps with and without the regularizer, alternating on the same batches."""
    marks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()

        def note(fraction: float, sentence: str) -> None:
            if sentence.startswith("encoding"):
                marks["encoded"] = time.monotonic() - begun

        encoder = Encoder(DEFAULT_ENCODER)
        begun = time.monotonic()
        regularizer = Reze(RegularizerSettings())
        regularizer.prepare(encoder, mixture, Path(folder) / "targets", Path(folder) / "cache", note)
        offline = time.monotonic() - begun
        model = load_model(DEFAULT_ENCODER, "cpu").float()
        position, _ = try_unpadding(model.eval(), PROBES) or (None, "")
        model.train()
        losses = [
            ContrastiveLoss(model, 0.05, NoRegularizer(), first_position=position),
            ContrastiveLoss(model, 0.05, regularizer, first_position=position),
        ]
        times = time_steps(model, losses, mixture, rounds)
    logs = np.log(times[:, 1] / times[:, 0])
    half = stats.t.ppf(0.975, rounds - 1) * logs.std(ddof=1) / np.sqrt(rounds)
    return {
        "pairs": len(mixture),
        "batch": BATCH,
        "threads": 1,
        "bfloat16": has_bfloat16("cpu"),
        "offline_seconds": offline,
        "encoding_seconds": marks.get("encoded", 0.0),
        "plain_seconds": float(np.median(times[:, 0])),
        "regularized_seconds": float(np.median(times[:, 1])),
        "overhead": float(np.expm1(logs.mean())),
        "overhead_interval": [float(np.expm1(logs.mean() - half)), float(np.expm1(logs.mean() + half))],
        "rounds": rounds,
    }


def time_steps(model: Any, losses: list[ContrastiveLoss], mixture: Mixture, rounds: int) -> np.ndarray:
    """Return the seconds of each step `(rounds, 2)`.

    Both sides take the same batch, and go first alternately.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    order = np.random.default_rng(0).permutation(len(mixture))
    times = np.empty((rounds, 2))
    for number in range(-2, rounds):  # two to warm up
        rows = order[np.arange(BATCH) + BATCH * (number % (len(order) // BATCH))]
        for which in (0, 1) if number % 2 else (1, 0):
            torch.manual_seed(number)  # the same dropout
            begun = time.perf_counter()
            columns = (mixture.anchors, mixture.positives)
            features = [model.preprocess([column[row] for row in rows]) for column in columns]
            with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16("cpu")):
                loss = losses[which](features, torch.from_numpy(rows))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if number >= 0:
                times[number, which] = time.perf_counter() - begun
    return times


if __name__ == "__main__":
    main()
