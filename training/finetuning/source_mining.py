"""Mined hard negatives of a job's sources, stored on disk and reused.

OUT/negatives/
├── SOURCE.jsonl        a pair on each line with its `negative` texts and their scores: also a source for other jobs
├── SOURCE.json         key of what the negatives depend on, and statistics
└── vectors/            of queries and documents by the auxiliary encoder     reference.py
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from training.datasets.overlap import normalize_text
from training.datasets.pairs import Pair
from training.digests import digest
from training.encoder.encoder import Encoder
from training.errors import JobError
from training.finetuning.candidates import Candidates, find_candidates
from training.finetuning.extras import NegativeSettings
from training.finetuning.job import SourceSettings
from training.finetuning.mining import Auxiliary, Mined, mine, wanted
from training.finetuning.mining_statistics import Statistics, describe
from training.finetuning.mixture_builder import Mixing
from training.finetuning.reference import Reference
from training.journal import Journal
from transforms.files import replace_synced
from transforms.progress import Progress

NOT_IN_NAMES = re.compile(r"[^\w.-]+")
"""Characters that are replaced by "_" in file names."""


def mine_sources(
    mixing: Mixing, settings: NegativeSettings, encoder: Encoder, folder: Path, on_progress: Progress
) -> dict[str, Statistics]:
    """Mine hard negatives for sources that want them, add them to the mixture's pairs; return statistics by source.

    Negatives that the folder holds of the same pairs, documents, encoder and settings are reused.

    Args:
        mixing: mixture under construction; its pairs are replaced in place.
        settings: settings of the mining.
        encoder: the auxiliary encoder.
        folder: folder for the mined negatives and vectors.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        JobError: if a source has fewer documents than needed, or no source wants mined negatives.
        DataSetError: if a corpus cannot be read.
    """
    names = [name for name in mixing.kept if is_mined(mixing.sources[name], mixing.kept[name])]
    if not names:
        raise JobError("there is no source to mine: each says negatives: none, or gives its own")
    auxiliary = Auxiliary(Reference(encoder, folder / "vectors"), settings.prompts)
    found = {}
    for place, name in enumerate(names):

        def report(fraction: float, sentence: str, place: int = place, name: str = name) -> None:
            """Report one source's progress as progress of all sources, with the source's name before the message."""
            on_progress((place + fraction) / len(names), f"mining {name}: {sentence}")

        candidates = find_candidates(mixing.data[name], mixing.sources[name], mixing.kept[name], mixing.forbidden)
        count = wanted(candidates, settings, name)
        cache = MinedCache(folder, name, key_of(encoder, candidates, settings, mixing.kept[name], mixing.settings.seed))
        mined = cache.read()
        if mined is None:
            auxiliary.encode(candidates, report)
            seed = mixing.settings.seed
            mined = mine(candidates, auxiliary, settings, count, seed) if count else nothing(candidates)
            cache.write(mixing.kept[name], mined, describe(candidates, auxiliary, settings, count, mined))
        by_query = {normalize_text(one.query): tuple(one.negatives) for one in mined}
        mixing.set_negatives(name, [by_query[normalize_text(pair.anchor)] for pair in mixing.kept[name]])
        found[name] = cache.statistics()
    return found


def is_mined(source: SourceSettings, pairs: Sequence[Pair]) -> bool:
    """Return whether hard negatives are mined for a source: if it says so, or says nothing and no pair has any."""
    if source.negatives is not None:
        return source.negatives == "mined"
    return not any(pair.negatives for pair in pairs)


def nothing(candidates: Candidates) -> list[Mined]:
    """Return a result without positives and negatives for every query, used if only the positives are documents."""
    return [Mined(query, {}, {}) for query in candidates.queries.values()]


def key_of(
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
        key: digest of what the negatives depend on, from `key_of`.
    """

    def __init__(self, folder: Path, name: str, key: str) -> None:
        plain = NOT_IN_NAMES.sub("_", name)
        if plain != name:  # so that two names do not become one
            plain += f"-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
        self.rows: Journal[dict[str, Any]] = Journal(folder / f"{plain}.jsonl", dict, strict=True)
        self.about, self.key = folder / f"{plain}.json", key

    def read(self) -> list[Mined] | None:
        """Return the cached results, one for each query; None if there are none, or they have another key."""
        if not self.about.is_file() or orjson.loads(self.about.read_bytes()).get("key") != self.key:
            return None
        found: dict[str, Mined] = {}
        for row in self.rows.read():
            one = found.setdefault(normalize_text(row["anchor"]), Mined(row["anchor"], {}, {}))
            one.positives[row["positive"]] = row["scores"][0]
            one.negatives.update(zip(row["negative"], row["scores"][1:], strict=True))
        return list(found.values())

    def write(self, pairs: Sequence[Pair], mined: Sequence[Mined], statistics: Statistics) -> None:
        """Write the mined negatives of every pair, then the key and statistics; a killed run leaves no valid key."""
        by_query = {normalize_text(one.query): one for one in mined}
        self.about.unlink(missing_ok=True)
        self.rows.replace(row_of(pair, by_query[normalize_text(pair.anchor)]) for pair in pairs)
        about = {"key": self.key, "statistics": statistics.as_json()}
        replace_synced(self.about, orjson.dumps(about, option=orjson.OPT_INDENT_2))

    def statistics(self) -> Statistics:
        """Read the statistics of the cached negatives."""
        return Statistics(**orjson.loads(self.about.read_bytes())["statistics"])


def row_of(pair: Pair, mined: Mined) -> dict[str, Any]:
    """Build the JSON object of a pair: its texts, its negatives, and the scores of the positive, then the negatives."""
    words = normalize_text(pair.positive)
    score = next((score for text, score in mined.positives.items() if normalize_text(text) == words), None)
    negatives = list(mined.negatives)
    return {
        "anchor": pair.anchor,
        "positive": pair.positive,
        "negative": negatives,
        "scores": [score, *mined.negatives.values()],
    }
