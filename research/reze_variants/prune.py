"""Cuts the table of a static encoder to the tokens of an experiment, so that its trainings take a fraction of the time.

    python -m research.reze_variants.prune --config experiment.yaml --out encoders/wordllama-code

AdamW goes through the whole table at every step, though it changes only the rows of tokens that occur. The vectors of
all texts of the experiment stay as they are, and so does what the trainings do to them.
"""

import argparse
import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

from lathe.training.encoder.devices import PROBES
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.finetuning.job import read_settings
from research.reze_experiment.plan import build_plan
from research.reze_experiment.scoring import Scorer
from research.reze_experiment.settings import ExperimentSettings
from research.reze_experiment.targets import shuffle_pairs

FIRST = 259
"""Number of leading tokens that always stay: special tokens and single bytes."""


def main() -> None:
    """Write the cut encoder, and print how many of its tokens are left."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--config", type=Path, required=True, help="an experiment whose encoder is a folder")
    options.add_argument("--out", type=Path, required=True, help="folder of the cut encoder")
    arguments = options.parse_args()
    settings = read_settings(arguments.config, ExperimentSettings)
    folder = Path(str(settings.encoder))
    left, whole = prune(folder, set(list_texts(settings, folder)) | set(PROBES), arguments.out)
    print(f"{left:,} of {whole:,} tokens are left")


def list_texts(settings: ExperimentSettings, folder: Path) -> Iterator[str]:
    """Yield every text that an experiment trains on or encodes."""
    spec = EncoderSpec(folder.name, str(folder))
    plan = build_plan(settings, spec, None, Encoder(spec), folder)
    for unit in plan.units:
        yield from (*unit.domain, *unit.mixture.anchors, *unit.mixture.positives)
        pairs = shuffle_pairs(unit.pairs, unit.training.seed)[: max(unit.rows)]
        yield from (text for pair in pairs for text in pair.parts)
    for one in plan.prepared:
        yield from Scorer(one.target, settings.limit).texts


def prune(encoder: Path, texts: Iterable[str], out: Path) -> tuple[int, int]:
    """Copy an encoder, keeping only the rows of the tokens of these texts.

    Tokens that occur get the smallest ids. All others keep their merges, but no row: a text with one is an error.

    Returns:
        The number of rows left and before.
    """
    tokenizer = Tokenizer.from_file(str(encoder / "tokenizer.json"))
    found = {number for one in tokenizer.encode_batch(list(texts)) for number in one.ids}
    table = load_file(encoder / "model.safetensors")["embedding.weight"]
    kept = sorted(found | set(range(FIRST)))
    order = np.array([*kept, *sorted(set(range(len(table))) - set(kept))])
    numbers = np.argsort(order)
    shutil.copytree(encoder, out)
    settings = json.loads((encoder / "tokenizer.json").read_bytes())
    settings["model"]["vocab"] = {token: int(numbers[old]) for token, old in settings["model"]["vocab"].items()}
    (out / "tokenizer.json").write_text(json.dumps(settings, ensure_ascii=False))
    save_file({"embedding.weight": np.ascontiguousarray(table[kept])}, out / "model.safetensors")
    return len(kept), len(table)


if __name__ == "__main__":
    main()
