"""Mined hard negatives of a job's sources, stored on disk and reused.

OUT/negatives/
├── SOURCE.jsonl        a pair on each line with its `negative` texts and their scores: also a source for other jobs
├── SOURCE.json         key of what the negatives depend on, and statistics
└── vectors/            of queries and documents by the auxiliary encoder     reference.py
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import orjson

from lathe.training.datasets.overlap import normalize_text
from lathe.training.datasets.pairs import Pair
from lathe.training.digests import digest
from lathe.training.encoder.encoder import Encoder
from lathe.training.errors import JobError
from lathe.training.finetuning.candidates import Candidates, find_candidates
from lathe.training.finetuning.extras import NegativeSettings
from lathe.training.finetuning.job import SourceSettings
from lathe.training.finetuning.mining import AuxiliaryEncoder, MiningResult, count_negatives_per_query, mine_negatives
from lathe.training.finetuning.mining_statistics import MiningStatistics, compute_statistics
from lathe.training.finetuning.mixture_builder import MixtureBuilder
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.journal import Journal
from lathe.transforms.files import replace_synced
from lathe.transforms.progress import Progress

_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
"""Characters that are replaced by "_" in file names."""


def mine_sources(
    builder: MixtureBuilder, settings: NegativeSettings, encoder: Encoder, folder: Path, on_progress: Progress
) -> dict[str, MiningStatistics]:
    """Mine hard negatives for the sources that want them, and set them on the builder's pairs in place.
    Return the mining statistics by source.

    Negatives that the folder holds of the same pairs, documents, encoder and settings are reused.

    Args:
        builder: mixture under construction; its pairs are replaced in place.
        settings: settings of the mining.
        encoder: the auxiliary encoder.
        folder: folder for the mined negatives and vectors.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if a source has fewer documents than needed, no source wants mined negatives, a stored line is
            damaged, or a vector is zero or not finite.
        DataSetError: if a corpus cannot be read.
    """
    names = [name for name in builder.kept if _is_mined(builder.sources[name], builder.kept[name])]
    if not names:
        raise JobError("there is no source to mine: each says negatives: none, or gives its own")

    auxiliary = AuxiliaryEncoder(ReferenceVectors(encoder, folder / "vectors"), settings.prompts)
    statistics, seed = {}, builder.settings.seed
    for number, name in enumerate(names):

        def report_source(fraction: float, sentence: str, number: int = number, name: str = name) -> None:
            on_progress((number + fraction) / len(names), f"mining {name}: {sentence}")

        candidates = find_candidates(builder.data[name], builder.sources[name], builder.kept[name], builder.forbidden)
        count = count_negatives_per_query(candidates, settings, name)
        # The key covers all that the negatives depend on: a changed setting mines again.
        cache = MinedCache(folder, name, _compute_key(encoder, candidates, settings, builder.kept[name], seed))
        mined = cache.read()

        if mined is None:
            auxiliary.encode(candidates, report_source)
            mined = mine_negatives(candidates, auxiliary, settings, count, seed) if count else _list_unmined(candidates)
            cache.write(builder.kept[name], mined, compute_statistics(candidates, auxiliary, settings, count, mined))

        # Pairs whose anchors differ only in case or punctuation share the negatives of one query.
        by_query = {normalize_text(result.query): tuple(result.negatives) for result in mined}
        builder.set_negatives(name, [by_query[normalize_text(pair.anchor)] for pair in builder.kept[name]])
        statistics[name] = cache.read_statistics()

    return statistics


def _is_mined(source: SourceSettings, pairs: Sequence[Pair]) -> bool:
    """Return whether hard negatives are mined for a source.
    Its settings decide, and without any it is mined if no pair has negatives of its own.
    """
    if source.negatives is not None:
        return source.negatives == "mined"
    return not any(pair.negatives for pair in pairs)


def _list_unmined(candidates: Candidates) -> list[MiningResult]:
    """Return a result without positives and negatives for every query, for a source that has no negatives to mine."""
    return [MiningResult(query, {}, {}) for query in candidates.queries.values()]


def _compute_key(
    encoder: Encoder, candidates: Candidates, settings: NegativeSettings, pairs: Sequence[Pair], seed: int
) -> str:
    """Return a digest of everything the mined negatives depend on: encoder, candidates, settings, pairs and seed."""
    chosen = settings.model_dump(exclude={"model"}, exclude_defaults=True)
    return digest(encoder.fingerprint, candidates.digest(), chosen, [[p.anchor, p.positive] for p in pairs], seed)


class MinedCache:
    """Cache of one source's mined negatives, on disk.

    Args:
        folder: folder of all sources' mined negatives.
        name: name of the source.
        key: digest of what the negatives depend on, from `_compute_key`.
    """

    def __init__(self, folder: Path, name: str, key: str) -> None:
        plain = _NOT_IN_NAMES.sub("_", name)
        if plain != name:  # so that two names do not become one
            plain += f"-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
        self.rows: Journal[dict[str, Any]] = Journal(folder / f"{plain}.jsonl", dict, strict=True)
        self.about, self.key = folder / f"{plain}.json", key

    def read(self) -> list[MiningResult] | None:
        """Read the cached mining results, one for each query. Return None if nothing is cached, or under another key.

        Raises:
            JobError: if a line of the cache is damaged.
        """
        if not self._has_key():
            return None

        results: dict[str, MiningResult] = {}
        for row in self.rows.read():
            result = results.setdefault(normalize_text(row["anchor"]), MiningResult(row["anchor"], {}, {}))
            result.positives[row["positive"]] = row["scores"][0]
            result.negatives.update(zip(row["negative"], row["scores"][1:], strict=True))

        return list(results.values())

    def _has_key(self) -> bool:
        """Return whether the cache was written under this key. It was not if its description is missing or damaged."""
        try:
            about = orjson.loads(self.about.read_bytes())
        except (OSError, orjson.JSONDecodeError):
            return False
        return isinstance(about, dict) and about.get("key") == self.key and isinstance(about.get("statistics"), dict)

    def write(self, pairs: Sequence[Pair], mined: Sequence[MiningResult], statistics: MiningStatistics) -> None:
        """Write the mined negatives of every pair to the cache, then its key and statistics.
        A killed run leaves no valid key.
        """
        by_query = {normalize_text(result.query): result for result in mined}
        self.about.unlink(missing_ok=True)
        self.rows.replace(_build_row(pair, by_query[normalize_text(pair.anchor)]) for pair in pairs)
        about = {"key": self.key, "statistics": asdict(statistics)}
        replace_synced(self.about, orjson.dumps(about, option=orjson.OPT_INDENT_2))

    def read_statistics(self) -> MiningStatistics:
        """Read the statistics of the cached negatives."""
        return MiningStatistics(**orjson.loads(self.about.read_bytes())["statistics"])


def _build_row(pair: Pair, mined: MiningResult) -> dict[str, Any]:
    """Build the JSON object of a pair with its mined negatives.
    Keys are `anchor`, `positive`, `negative` (a list) and `scores`.

    `scores` holds the positive's score, None if it has none, then those of the negatives.
    """
    words = normalize_text(pair.positive)
    score = next((score for text, score in mined.positives.items() if normalize_text(text) == words), None)
    negatives = list(mined.negatives)

    return {
        "anchor": pair.anchor,
        "positive": pair.positive,
        "negative": negatives,
        "scores": [score, *mined.negatives.values()],
    }
