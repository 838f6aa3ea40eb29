"""Does the advice notice that an encoder was trained to be cut.

The default encoder is trained on pairs with MatryoshkaLoss (Kusupati et al. 2022, as sentence-transformers has it), and
the verdict of `lathe advise` is taken on texts it was not trained on, at the start and after more and more steps.
Beside it, what must not be taken for one: the layers of the encoder as it is.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

from benchmarks.report import markdown_table, parser, write_report
from lathe.training.deciding.evidence import MAX_ROWS, compare_first_coordinates
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.spec import DEFAULT_ENCODER
from lathe.training.sources.source import open_source
from lathe.transforms.vectors import FloatArray
from research.encoders import list_variants

LOOKS = (0, 50, 100, 200, 400)
BATCH, LEARNING_RATE = 32, 5e-4
SIZES = (384, 192, 96, 48)


def main() -> None:
    """Train, look now and then, print a table, write the raw figures."""
    options = parser(__doc__)
    options.add_argument("--pairs", type=Path, required=True, help="JSON lines of sentence1, sentence2, label 1 or 0")
    options.add_argument("--texts", required=True, help="a source to look at vectors of, trained on by nobody")
    arguments = options.parse_args()
    torch.manual_seed(0)
    texts = sampled(arguments.texts)
    figures = [
        {"encoder": f"{name}, as it is", "steps": 0, **verdict(vectors)}
        for name, vectors in layers(texts, arguments.quick)
    ]
    looks = LOOKS[:2] if arguments.quick else LOOKS
    for step, vectors in trained(pairs(arguments.pairs), texts, looks):
        figures.append({"encoder": "all-MiniLM-L6-v2, trained to be cut", "steps": step, **verdict(vectors)})
        print(f"{step} of {looks[-1]} steps", file=sys.stderr)
    print(as_table(figures))
    print("raw figures:", write_report(arguments.out, "matryoshka", figures), file=sys.stderr)


def pairs(path: Path) -> list[tuple[str, str]]:
    """Return the pairs of sentences that say the same."""
    rows = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    return [(row["sentence1"], row["sentence2"]) for row in rows if row["label"] == 1]


def sampled(written: str) -> list[str]:
    """Return distinct texts, spread evenly over the source."""
    texts = [text for batch in open_source(written).batches() for text in batch.values if isinstance(text, str)]
    texts = list(dict.fromkeys(text for text in texts if text.strip()))
    return [texts[place] for place in np.linspace(0, len(texts) - 1, min(MAX_ROWS, len(texts))).astype(int)]


def layers(texts: list[str], quick: bool) -> Iterator[tuple[str, FloatArray]]:
    """Yield the name and the vectors of every layer under both poolings."""
    for wanted in list_variants(DEFAULT_ENCODER, "layer6-mean" if quick else "layers"):
        yield wanted.spec.name, Encoder(wanted.spec).encode(texts).vectors


def trained(found: list[tuple[str, str]], texts: list[str], looks: tuple[int, ...]) -> Iterator[tuple[int, FloatArray]]:
    """Train, and encode the texts after so many steps."""
    model = load_model(DEFAULT_ENCODER, "cpu")
    loss = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), list(SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), LEARNING_RATE)
    random = np.random.default_rng(0)
    for step in range(looks[-1] + 1):
        if step in looks:
            model.eval()
            yield step, model.encode(texts, batch_size=BATCH, show_progress_bar=False)
            model.train()
        chosen = random.choice(len(found), BATCH, replace=False)
        features = [model.preprocess([found[row][side] for row in chosen]) for side in (0, 1)]
        optimizer.zero_grad()
        loss(features, torch.zeros(BATCH)).backward()
        optimizer.step()


def verdict(vectors: FloatArray) -> dict[str, Any]:
    """Return what the advice says of vectors, with the figures behind it."""
    found = compare_first_coordinates(vectors)
    cuts = {str(cut["dimensions"]): {key: cut[key] for key in ("first", "random", "best")} for cut in found.cuts}
    return {"first_hold_more": found.first_hold_more, "cuts": cuts}


def as_table(figures: list[dict[str, Any]]) -> str:
    """Return a table of first coordinates against random ones, in points of recall@10, and of the verdict."""
    sizes = list(figures[0]["cuts"])
    rows = [
        [
            figure["encoder"],
            str(figure["steps"]),
            *(f"{figure['cuts'][size]['first'] - figure['cuts'][size]['random']:+.1f}" for size in sizes),
            "trained to be cut" if figure["first_hold_more"] else "not",
        ]
        for figure in figures
    ]
    return markdown_table(["encoder", "steps", *(f"first {size} against random" for size in sizes), "verdict"], rows)


if __name__ == "__main__":
    main()
