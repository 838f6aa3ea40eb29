"""Training of an encoder on judged searches, as a candidate change."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from lathe.training.deciding.judged import JudgedSearches
from lathe.training.deciding.trial import Candidate
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import (
    ROUTED,
    TextEncoder,
    encode_queries,
    find_side_prompt,
    with_document_prompt,
)
from lathe.training.fitting.pairs import PairTexts
from lathe.transforms.files import make_folder
from lathe.transforms.progress import Progress, part_of

FOLDER_CAP, FOLDER_EPOCHS = 256, 1.0
"""Maximum number of pairs of each labelled data set, and passes over them, as in the REZE paper."""

LORA_PARAMETERS = 200_000_000
"""Number of weights from which on low-rank adapters are trained instead of all: AdamW takes 16 bytes for a weight."""

TrainingSettings = dict[str, Any]
"""Settings of a training, fields of `lathe.training.finetuning.job.TrainingSettings`."""

TRANSFORMER_SETTINGS: TrainingSettings = {
    "learning_rate": 1e-4,
    "batch_size": 32,
    "epochs": 2.0,
    "warmup_ratio": 0.1,
    "max_length": 128,
    "mask_identical": True,
    "checkpoint_steps": 50,
}
"""Settings of the training of a transformer, chosen on FiQA, Spider and MBPP (research/adaptation.md)."""

STATIC_SETTINGS: TrainingSettings = {
    "learning_rate": 1e-2,
    "batch_size": 32,
    "epochs": 8.0,
    "mask_identical": True,
    "checkpoint_steps": 200,
}
"""Those of a static encoder, which has one vector for each token: only those of the batch's tokens have gradients."""

PASSES = 3.5
"""Time of a training step in forward passes of its texts: one forward, two backward, and the optimizer."""


def find_training_obstacle(encoder: TextEncoder) -> str | None:
    """Return the reason why the encoder cannot be trained on this machine, or None if it can.

    The reasons are a model behind an API, a model with two routes, and a missing package.
    """
    if encoder.spec.upstream is not None:
        return "an embeddings API encodes the texts, and its model is not here to be trained"
    if encoder.routed:
        return f"{encoder.name} {ROUTED}: train the two before they are joined"
    missing = [name for name in ("accelerate", "datasets") if find_spec(name) is None]
    if missing:
        return f"training needs {' and '.join(missing)}: pip install 'lathe-training[finetuning]'"
    return None


def train_candidate(
    candidate: Candidate,
    encoder: TextEncoder,
    settings: TrainingSettings,
    searches: JudgedSearches,
    folders: Sequence[str],
    out: Path,
    device: str | None,
    seed: int,
    on_progress: Progress,
    max_queries: int | None = None,
) -> EncoderSpec:
    """Train an encoder on the queries to learn from and their relevant documents.

    A training that was stopped is resumed, and one that is done is not repeated. The loss includes a distillation term,
    which keeps the vectors near the base encoder's. For the candidate that is pre-finetuned, the encoder is first
    trained on the labelled folders with REZE's regularizer, without pairs that share a text with the queries held out
    here.

    Args:
        candidate: the candidate change, which says what to train on.
        encoder: the base encoder.
        settings: settings of its training, see `choose_training_settings`.
        searches: judged searches; only the queries to learn from are trained on.
        folders: folders of labelled data sets.
        out: folder of the training.
        device: torch device; None for the best there is.
        seed: seed of the order of pairs.
        on_progress: called with progress in [0, 1] and a message.
        max_queries: maximum number of queries to train on; None for all.

    Returns:
        The spec of the trained encoder.

    Raises:
        JobError: if the training cannot be done as described.
    """
    make_folder(out)
    prompts = _find_prompts(encoder)
    learned = encoder.spec
    start = 0.0
    if candidate.training == "folders and pairs":
        sources = [{"folder": str(Path(folder).absolute()), "prompts": prompts} for folder in folders]
        # The labelled folders may hold texts of the queries that the gain is measured on.
        held_out = [text for pair in (*searches.choose.pairs, *searches.report.pairs) for text in pair]
        job = {"sources": sources, "cap": FOLDER_CAP, "overlap": "drop", "leave_out": held_out}
        folder_settings = settings | {"batch_size": 8, "mini_batch_size": None, "epochs": FOLDER_EPOCHS}
        start = 0.5
        report = part_of(on_progress, 0.0, start)
        learned = _train("reze", job, folder_settings, learned, out / "folders", device, seed, report)

    pairs = _limit_queries(searches.learn, max_queries).pairs
    rows = [{"anchor": query, "positive": text} for query, text in pairs]
    job = {"sources": [{"rows": rows, "name": "pairs", "prompts": prompts}]}
    report = part_of(on_progress, start, 1.0)
    return _train("distill", job, settings, learned, out / "pairs", device, seed, report)


def _limit_queries(part: PairTexts, max_queries: int | None) -> PairTexts:
    """Return the pairs of at most `max_queries` queries, evenly spaced; None returns all pairs."""
    queries = list(part.documents)
    if max_queries is None or max_queries >= len(queries):
        return part
    return part.select([queries[i] for i in np.linspace(0, len(queries) - 1, max_queries).astype(int)])


def _train(
    method: str,
    job: dict[str, Any],
    settings: TrainingSettings,
    spec: EncoderSpec,
    out: Path,
    device: str | None,
    seed: int,
    on_progress: Progress,
) -> EncoderSpec:
    """Train the encoder of a spec with a method (`reze` or `distill`), unless `out` holds the trained model already.

    Returns the spec of the trained model.
    """
    from lathe.training.finetuning.job import TrainingJob
    from lathe.training.finetuning.run import MODEL, SUMMARY, run_training

    if not ((out / MODEL).is_dir() and (out / SUMMARY).is_file()):
        described = job | {"seed": seed, "training": settings | {"seed": seed}}
        run_training(method, TrainingJob.model_validate(described), spec, device, out, on_progress)
    return replace(spec, model=str(out / MODEL), revision=None)


def choose_training_settings(spec: EncoderSpec) -> TrainingSettings:
    """Return the training settings for the kind of encoder, which is loaded for that.

    The kinds are static, transformer and large transformer, which gets low-rank adapters if `peft` is installed.
    """
    from lathe.training.encoder.loading import load_model

    model = load_model(replace(spec, dtype="float32", compile=False), "cpu")
    # A static encoder has no transformer, so it needs no limit on lengths and no low-rank adapters.
    if not hasattr(next(iter(model)), "auto_model"):
        return STATIC_SETTINGS
    settings = TRANSFORMER_SETTINGS | {"max_length": min(TRANSFORMER_SETTINGS["max_length"], model.max_seq_length)}
    if sum(weights.numel() for weights in model.parameters()) < LORA_PARAMETERS:
        return settings
    return settings | {"mini_batch_size": 8} | ({"lora": {}} if find_spec("peft") is not None else {})


def _find_prompts(encoder: TextEncoder) -> dict[str, str]:
    """Return the prompts for searches, put before queries (key `anchor`) and documents (key `positive`) in training."""
    query = find_side_prompt(encoder.prompts, "query", encoder.default_prompt_name)
    return {
        "anchor": encoder.prompt(query) or "",
        "positive": with_document_prompt(encoder).prompt(None) or "",
    }


def measure_seconds_per_document(encoder: TextEncoder, texts: Sequence[str]) -> float:
    """Return the seconds that the encoder takes for a document, measured on the given documents after a warm-up pass.

    Args:
        encoder: encoder that stores no vectors.
        texts: documents.
    """
    encode_queries(encoder, texts[:8])  # the first pass also prepares the model
    begun = perf_counter()
    with_document_prompt(encoder).encode(texts)
    return (perf_counter() - begun) / max(len(texts), 1)
