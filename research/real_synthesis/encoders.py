"""Encoders as judges of the pairs, and encoders trained on them: round-trip consistency, nDCG@10 before and after."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.codes.data import list_document_texts
from benchmarks.synthesis import run_lathe
from lathe.training.comparison import Array, mean_interval
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.records import Search, Warnings
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.encoder.text_encoder import NO_PROMPT
from research.domains.measures import RANKS, Vectors, ndcg, rank_best
from research.paper_findings.statistics import bootstrap
from research.real_synthesis.path import Plan, read_lines

TRAINED_LENGTH, MAX_LENGTH = 64, 128
"""Tokens of a text, in training and in evaluation."""
MAX_DOCUMENTS = 1000
"""Number of documents of the test's corpus: those that are judged, and then others."""
EPOCHS, LEARNING_RATE, BATCH_SIZE = 3, 2e-5, 8
"""Settings of every training, fixed before the first."""
Pair = tuple[str, str]
"""Query and document."""


@dataclass(frozen=True)
class Condition:
    """Training to compare: which pairs, and which command of `lathe train`.

    Attributes:
        name: name in tables.
        pairs: file of pairs in the work folder.
        method: subcommand of `lathe train`.
        count: maximum number of pairs.
    """

    name: str
    pairs: str
    method: str
    count: int

    def name_training(self, seed: int) -> str:
        """Return the name of the training with a seed, of which files and folders have theirs."""
        return f"{self.name.replace(' ', '-')}-{seed}"


def list_conditions(count: int) -> list[Condition]:
    """Return the trainings to compare, with at most `count` pairs each."""
    return [
        Condition("synthetic pairs", "pairs/pairs.jsonl", "ft", count),
        Condition("the seeds themselves", "seed-pairs.jsonl", "ft", count),
        Condition("other real pairs", "real-pairs.jsonl", "ft", count),
    ]


def encode(encoder: Encoder, texts: Sequence[str], side: str) -> Vectors:
    """Return unit vectors `(n, d)` of texts, with the encoder's prompt for the side, `query` or `document`, if any."""
    named = side if side in encoder.prompts else None
    return encoder.encode(list(texts), prompt_name=named or NO_PROMPT).vectors


def measure_round_trips(
    encoder: Encoder, documents: Sequence[str], sets: Mapping[str, Sequence[Pair]]
) -> dict[str, dict[str, Any]]:
    """Return, for each set of pairs, how well its queries find their own documents among all documents.

    This is the round-trip consistency of Promptagator (Dai et al. 2022), with 95 % intervals over queries.

    Args:
        encoder: the judge.
        documents: distinct documents, among them those of the pairs.
        sets: pairs of query and document, by name.
    """
    place = {document: row for row, document in enumerate(documents)}
    vectors = encode(encoder, documents, "document")
    found = {}
    for name, pairs in sets.items():
        similarities = encode(encoder, [query for query, _ in pairs], "query") @ vectors.T
        own = np.array([place[document] for _, document in pairs])
        ranks = 1 + (similarities > similarities[np.arange(len(own)), own][:, None]).sum(axis=1)
        gains = np.where(ranks <= RANKS, 1 / np.log2(ranks + 1), 0.0)
        found[name] = {
            "pairs": len(pairs),
            "documents": len(documents),
            "found_at_1": asdict(bootstrap((ranks == 1).astype(float))),
            "found_at_10": asdict(bootstrap((ranks <= RANKS).astype(float))),
            "ndcg_at_10": asdict(bootstrap(gains)),
            "ranks": ranks.tolist(),
        }
    return found


def score_queries(encoder: Encoder, search: Search) -> Array:
    """Return the nDCG@10 of each query of a search task, `(q,)`."""
    keys = list(search.corpus)
    documents = encode(encoder, list_document_texts(search), "document")
    queries = encode(encoder, list(search.queries.values()), "query")
    found = []
    for vector, key in zip(queries, search.queries, strict=True):
        judged = search.relevant[key]
        ranked = [judged.get(keys[row], 0) for row in rank_best(documents @ vector, RANKS)]
        found.append(ndcg(np.array(ranked, float), np.array(list(judged.values()), float)))
    return np.array(found)


def read_test(plan: Plan) -> Search:
    """Read the test of the data set with all judged documents, and others up to `MAX_DOCUMENTS` in all."""
    found = FolderDataSet("fiqa_qa", "retrieval", plan.folder).read_test(Warnings())
    assert isinstance(found, Search)  # of its layout
    judged = {key for grades in found.relevant.values() for key in grades}
    keys = sorted(found.corpus, key=lambda key: key not in judged)[: max(MAX_DOCUMENTS, len(judged))]
    return replace(found, corpus={key: found.corpus[key] for key in keys})


def train_and_score(plan: Plan, condition: Condition, seed: int, search: Search) -> dict[str, Any]:
    """Train with `lathe train`, score the encoder, and return steps, negatives, seconds, nDCG@10 of each query.

    A training whose scores are on disk is not repeated.
    """
    name = condition.name_training(seed)
    folder = plan.work / "models" / name
    path = folder / "scores.json"
    if path.exists():
        return dict(orjson.loads(path.read_bytes()))
    rows = read_lines(plan.work / condition.pairs)[: condition.count]
    config = plan.work / f"train-{name}.yaml"
    pairs = plan.work / f"train-{name}.jsonl"
    pairs.write_bytes(
        b"".join(orjson.dumps({name: row[name] for name in ("anchor", "positive")}) + b"\n" for row in rows)
    )
    job = {
        "sources": [{"jsonl": pairs.name, "name": "pairs"}],
        "negatives": {"num_negatives": 2, "range_min": 1, "relative_margin": 0.05, "allow_fewer": True},
        "training": {
            "learning_rate": LEARNING_RATE,
            "batch_size": BATCH_SIZE,
            "epochs": EPOCHS,
            "max_length": TRAINED_LENGTH,
            "seed": seed,
        },
    }
    config.write_text(json.dumps(job, indent=1))
    begun = time.monotonic()
    run_lathe(plan.work, "train", condition.method, "--config", config.name, "--out", f"models/{name}")
    seconds = time.monotonic() - begun
    report = orjson.loads((folder / "training.json").read_bytes())
    scores = score_queries(open_trained(folder / "model"), search)
    found = {key: report[key] for key in ("steps", "pairs", "negatives")}
    found |= {"seconds": round(seconds, 1), "ndcg_at_10": scores.tolist()}
    path.write_bytes(orjson.dumps(found))
    return found


def open_trained(model: Path | None = None) -> Encoder:
    """Load a trained encoder from its folder.

    None loads the untrained base.
    """
    spec = replace(DEFAULT_ENCODER, max_length=MAX_LENGTH)
    return Encoder(spec if model is None else replace(spec, model=str(model)))


def open_judges(folders: dict[str, Path]) -> dict[str, Encoder]:
    """Load the encoders that judge the pairs: the default one, and those in folders, by name."""
    specs = [replace(DEFAULT_ENCODER, max_length=MAX_LENGTH)]
    specs += [EncoderSpec(name, str(folder), max_length=MAX_LENGTH) for name, folder in folders.items()]
    return {spec.name: Encoder(spec) for spec in specs}


def score_base(plan: Plan, search: Search) -> Array:
    """Return the nDCG@10 of each query by the untrained base, `(q,)`.

    Computed once and stored in the work folder.
    """
    path = plan.work / "base.json"
    if not path.exists():
        path.write_bytes(orjson.dumps(score_queries(open_trained(), search).tolist()))
    return np.array(orjson.loads(path.read_bytes()))


def compare_with_base(plan: Plan, conditions: Mapping[Condition, int]) -> dict[str, Any]:
    """Train and score every condition.

    The interval `over_queries` resamples the test's queries, each with its mean over seeds. The interval `over_seeds`
    is Student's t over seeds.

    Args:
        plan: settings of the run.
        conditions: number of seeds of each condition.

    Returns:
        The base's nDCG@10 and each condition's difference, × 100.
    """
    search = read_test(plan)
    base = 100 * score_base(plan, search)
    found: dict[str, Any] = {"base": asdict(bootstrap(base)), "queries": len(base), "conditions": {}}
    for condition, seeds in conditions.items():
        runs = [train_and_score(plan, condition, seed, search) for seed in range(seeds)]
        scores = 100 * np.array([run["ndcg_at_10"] for run in runs])
        found["conditions"][condition.name] = {
            **{key: runs[0][key] for key in ("pairs", "negatives", "steps")},
            "seconds": [run["seconds"] for run in runs],
            "score": float(scores.mean()),
            "by_seed": scores.mean(axis=1).tolist(),
            "less_base_over_queries": asdict(bootstrap(scores.mean(axis=0) - base)),
            "less_base_over_seeds": asdict(mean_interval(scores.mean(axis=1) - base.mean())),
        }
    return found


def add_encoder(plan: Plan, condition: Condition) -> str:
    """Run `lathe encoders add` for a condition's encoder of seed 0, named finance, unless that name is taken.

    Returns:
        The output of `lathe encoders list`.
    """
    name = condition.name_training(seed=0)
    if not any(line.startswith("finance ") for line in run_lathe(plan.work, "encoders", "list").splitlines()):
        run_lathe(plan.work, "encoders", "add", "finance", "--model", f"models/{name}/model")
    return run_lathe(plan.work, "encoders", "list")
