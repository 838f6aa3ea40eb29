"""Trainings of an encoder on judged searches: candidates of an adaptation, within a budget of seconds."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from lathe.training.deciding.judged import JudgedSearches
from lathe.training.deciding.requests import HELD_OUT_SHARE, AdaptRequest
from lathe.training.deciding.trial import Candidate
from lathe.training.encoder.opening import without_store
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import (
    ROUTED,
    TextEncoder,
    encode_queries,
    find_side_prompt,
    with_document_prompt,
)
from lathe.training.fitting.pairs import PairTexts
from lathe.transforms.files import make_folder, read_json_file, replace_synced
from lathe.transforms.learned.query_adapter import MIN_QUERIES
from lathe.transforms.progress import Progress, part_of

FOLDER_CAP, FOLDER_EPOCHS = 256, 1.0
"""Maximum number of pairs of a labelled data set, and epochs over these pairs, as in the REZE paper."""

LORA_PARAMETERS = 200_000_000
"""Number of weights from which on low-rank adapters (LoRA) are trained: AdamW takes 16 bytes per trained weight."""

ALL_QUERIES = math.ceil(MIN_QUERIES / (1 - 2 * HELD_OUT_SHARE))
"""Minimum number of judged queries for every candidate: after the split, `MIN_QUERIES` are left to learn from."""

TIMED_DOCUMENTS = 64
"""Number of documents that are encoded to measure the encoder's speed."""

TrainingSettings = dict[str, Any]
"""Settings of a training: fields of `lathe.training.finetuning.job.TrainingSettings` by name."""

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
"""Settings of the training of a static encoder, where only the vectors of the tokens in a batch have gradients."""

PASSES = 3.5
"""Time of a training step in forward passes of its texts: one forward, two backward, and half for the optimizer."""
BUDGET_FILE = "budget.json"
"""Name of the file that stores a `Budget` between runs: seconds spent, and the decided numbers of queries."""


class Budget:
    """A budget of seconds for all runs of an adaptation, stored in the workspace folder so that runs can be resumed.

    Args:
        seconds: the budget; None for no limit.
        folder: workspace folder of the adaptation.
    """

    def __init__(self, seconds: float | None, folder: Path) -> None:
        self.seconds = seconds
        self.path = folder / BUDGET_FILE
        self.begun = time.monotonic()
        try:
            self.stored = read_json_file(self.path)
        except FileNotFoundError:
            self.stored = {"spent": 0.0, "queries": {}, "seconds": {}}
        self.spent_before = float(self.stored["spent"])

    @property
    def left(self) -> float:
        """Seconds that are left of the budget: infinite without a limit, negative once the budget is overspent."""
        if self.seconds is None:
            return float("inf")
        return self.seconds - self.spent_before - (time.monotonic() - self.begun)

    def decide_queries(self, candidate: str, count: int, seconds_each: float, reserved: float) -> int:
        """Decide on how many queries a candidate may train within the budget, and store the number for later calls.

        A stored number is returned without a new decision, because a stopped training can only be resumed with the same
        queries.

        Args:
            candidate: name of the candidate.
            count: number of available queries.
            seconds_each: estimated training seconds for one query.
            reserved: seconds of the budget to leave for the work after the training.
        """
        decided: dict[str, int] = self.stored["queries"]
        if candidate not in decided:
            affordable = (self.left - reserved) / max(seconds_each, 1e-9)
            decided[candidate] = int(max(0, min(count, affordable)))
            self.save()
        return decided[candidate]

    def add_seconds(self, candidate: str, seconds: float) -> float:
        """Add seconds to the training time of a candidate, store the sum over all runs on disk, and return the sum."""
        taken: dict[str, float] = self.stored["seconds"]
        taken[candidate] = taken.get(candidate, 0.0) + seconds
        self.save()
        return taken[candidate]

    def save(self) -> None:
        """Write the spent seconds of the budget, and the decision and seconds of every candidate, to `BUDGET_FILE`."""
        spent = self.spent_before + time.monotonic() - self.begun
        replace_synced(self.path, json.dumps(self.stored | {"spent": spent}).encode())


@dataclass
class EncoderTrainings:
    """The trainings of one adaptation.

    Creating the object measures the encoder's speed, unless no encoder can be trained.

    Attributes:
        request: the request of the adaptation.
        encoder: the base encoder.
        searches: judged searches; encoders are trained only on the queries to learn from.
        folder: workspace folder of the adaptation.
        budget: the budget of seconds.
        device: torch device; None for the best there is.
        queries: number of queries to learn from.
        obstacle: reason why no encoder can be trained; None if training is possible.
        seconds_per_document: seconds that the encoder takes for a document; 0 if no encoder can be trained.
        settings: settings of the trainings; empty if no encoder can be trained.
    """

    request: AdaptRequest
    encoder: TextEncoder
    searches: JudgedSearches
    folder: Path
    budget: Budget
    device: str | None

    def __post_init__(self) -> None:
        self.queries = len(self.searches.learn.by_query)
        self.obstacle = self._find_obstacle()
        self.seconds_per_document = 0.0
        self.settings: TrainingSettings = {}
        if self.obstacle is None:
            self.seconds_per_document = measure_seconds_per_document(self.encoder, self.searches.documents)
            self.settings = _choose_training_settings(self.encoder.spec)

    @property
    def encode_seconds(self) -> float:
        """Estimated seconds to encode all documents of `searches`."""
        return self.seconds_per_document * len(self.searches.documents)

    def explain_omission(self, candidate: Candidate) -> str | None:
        """Return the reason why a candidate is not trained, or None. Decides and stores how many queries it may use."""
        if self.obstacle is not None:
            return self.obstacle
        if candidate.training == "folders and pairs" and not self.request.folders:
            return "no labelled folders were given"
        if self._count_affordable(candidate) < MIN_QUERIES:
            seconds = self._seconds_each(candidate) * self.queries + self.encode_seconds
            return f"it would take about {seconds:,.0f} s, and {max(self.budget.left, 0):,.0f} s of the budget are left"
        return None

    def train(self, candidate: Candidate, on_progress: Progress) -> tuple[EncoderSpec, float]:
        """Train a candidate's encoder, unless it is trained already, and return its spec and the training seconds.

        Labelled folders come first, if the candidate takes them, then pairs with distillation. The distillation term
        keeps the vectors near the vectors of the base encoder. An interrupted training is resumed. The training on
        folders has REZE's regularizer, and leaves out pairs that share a text with the queries to measure with.

        Args:
            candidate: a candidate for which `explain_omission` returned None.
            on_progress: called with progress in [0, 1] and a message.

        Returns:
            The spec of the trained encoder, and the training seconds of all runs.

        Raises:
            JobError: if the training cannot be done as described.
        """
        begun = perf_counter()
        out, prompts, start = self.folder / candidate.name, _find_prompts(self.encoder), 0.0
        make_folder(out)
        learned = self.encoder.spec
        if candidate.training == "folders and pairs":
            start = 0.5
            sources = [{"folder": str(Path(folder).absolute()), "prompts": prompts} for folder in self.request.folders]
            # The labelled folders may hold texts of the queries that the gain is measured on.
            held_out = [text for pair in self.searches.measured.pairs for text in pair]
            job = {"sources": sources, "cap": FOLDER_CAP, "overlap": "drop", "leave_out": held_out}
            settings = self.settings | {"batch_size": 8, "mini_batch_size": None, "epochs": FOLDER_EPOCHS}
            learned = self._train("reze", job, settings, learned, out / "folders", part_of(on_progress, 0.0, start))

        pairs = _limit_queries(self.searches.learn, self._count_affordable(candidate)).pairs
        rows = [{"anchor": query, "positive": text} for query, text in pairs]
        job = {"sources": [{"rows": rows, "name": "pairs", "prompts": prompts}]}
        learned = self._train("distill", job, self.settings, learned, out / "pairs", part_of(on_progress, start, 1.0))
        return learned, self.budget.add_seconds(candidate.name, perf_counter() - begun)

    def _find_obstacle(self) -> str | None:
        if not self.request.train:
            return "the encoder is to stay as it is"
        if self.queries < MIN_QUERIES:
            return (
                f"there are {self.queries} queries to learn from, and {MIN_QUERIES} are needed: give "
                f"{ALL_QUERIES} in all"
            )
        return find_training_obstacle(self.encoder)

    def _seconds_each(self, candidate: Candidate) -> float:
        """Estimate the seconds of a candidate's training for one query to learn from."""
        pairs = len(self.searches.learn.pairs) / max(self.queries, 1)
        folder_epochs = FOLDER_EPOCHS if candidate.training == "folders and pairs" else 0.0
        return self.seconds_per_document * PASSES * (float(self.settings["epochs"]) + folder_epochs) * pairs

    def _count_affordable(self, candidate: Candidate) -> int:
        """Return how many queries a candidate may train on within the budget. The first call decides and stores it."""
        return self.budget.decide_queries(
            candidate.name, self.queries, self._seconds_each(candidate), self.encode_seconds
        )

    def _train(
        self,
        method: str,
        job: dict[str, Any],
        settings: TrainingSettings,
        spec: EncoderSpec,
        out: Path,
        on_progress: Progress,
    ) -> EncoderSpec:
        """Train the encoder of a spec into `out`, unless `out` holds the model already, and return the model's spec.

        `method` is the regularizer, `reze` or `distill`.
        """
        from lathe.training.finetuning.job import TrainingJob
        from lathe.training.finetuning.run import MODEL, SUMMARY, run_training

        if not ((out / MODEL).is_dir() and (out / SUMMARY).is_file()):
            seed = self.request.seed
            described = TrainingJob.model_validate(job | {"seed": seed, "training": settings | {"seed": seed}})
            run_training(method, described, spec, self.device, out, on_progress)
        return replace(spec, model=str(out / MODEL), revision=None)


def find_training_obstacle(encoder: TextEncoder) -> str | None:
    """Return the reason why the encoder cannot be trained on this machine, or None if it can be trained.

    The reasons are a model behind an embeddings API, a model with separate routes for queries and documents, and a
    missing package.
    """
    if encoder.spec.upstream is not None:
        return "an embeddings API encodes the texts, and only local models can be trained"
    if encoder.routed:
        return f"{encoder.name} {ROUTED}: train both models before you combine them"
    missing = [name for name in ("accelerate", "datasets") if find_spec(name) is None]
    if missing:
        return f"training needs {' and '.join(missing)}: pip install 'lathe-training[finetuning]'"
    return None


def _limit_queries(part: PairTexts, max_queries: int) -> PairTexts:
    """Return the pairs of at most `max_queries` queries, evenly spaced."""
    queries = list(part.by_query)
    if max_queries >= len(queries):
        return part
    return part.select([queries[i] for i in np.linspace(0, len(queries) - 1, max_queries).astype(int)])


def _choose_training_settings(spec: EncoderSpec) -> TrainingSettings:
    """Load the encoder's model on the CPU, and choose settings for a static encoder, a transformer or a large one.

    A transformer with at least `LORA_PARAMETERS` weights gets low-rank adapters (LoRA) if `peft` is installed.
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
    """Return the encoder's prompts for queries (`anchor`) and for documents (`positive`), "" for no prompt."""
    query = find_side_prompt(encoder.prompts, "query", encoder.default_prompt_name)
    return {
        "anchor": encoder.prompt(query) or "",
        "positive": with_document_prompt(encoder).prompt(None) or "",
    }


def measure_seconds_per_document(encoder: TextEncoder, documents: Sequence[str]) -> float:
    """Measure the encoder's mean seconds per document on about `TIMED_DOCUMENTS` documents, after a warm-up pass.

    The documents are encoded without the encoder's store, because stored vectors would take no time.
    """
    encoder = without_store(encoder)
    timed = documents[:: max(1, len(documents) // TIMED_DOCUMENTS)]
    encode_queries(encoder, timed[:8])  # the first pass also prepares the model
    begun = perf_counter()
    with_document_prompt(encoder).encode(timed)
    return (perf_counter() - begun) / max(len(timed), 1)
