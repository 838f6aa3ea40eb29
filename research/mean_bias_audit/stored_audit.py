"""Audit of an encoder's vectors, and its JSON file."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from lathe.transforms.files import replace_synced
from research.mean_bias_audit.means import Direction, LanguageMean, MeanPoint, Norms, PromptMean


@dataclass(frozen=True)
class CorpusMean:
    """Mean vector of the corpus: `growth` by sample size, `direction` relative to the first principal component."""

    growth: tuple[MeanPoint, ...]
    direction: Direction


@dataclass(frozen=True)
class Languages:
    """Mean vectors of the suite's languages.

    Attributes:
        texts: number of texts of each language.
        means: mean by language, each with the running mean up to it.
        few: languages left out because they have fewer than 50 texts, with their number of texts.
        unclear: data sets left out because their texts are in several languages, or no language is named.
    """

    texts: int
    means: tuple[LanguageMean, ...]
    few: Mapping[str, int]
    unclear: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """Mean vectors of the same sentences under each prompt.

    Attributes:
        texts: number of sentences.
        plain_norm: ‖μ‖ without a prompt.
        generic: whether the encoder has no prompts, so that generic ones were tried.
        means: mean by prompt.
    """

    texts: int
    plain_norm: float
    generic: bool
    means: tuple[PromptMean, ...]


@dataclass(frozen=True)
class Audit:
    """Anomalies of an encoder's vectors.

    Attributes:
        norms: norms before normalization; None if no text could be encoded.
        corpus: mean of the corpus.
        languages: means by language of the suite.
        prompts: means by prompt; None for a bag of words, which takes no prompts.
        problems: messages on what could not be measured; such a part is None.
    """

    norms: Norms | None
    corpus: CorpusMean | None
    languages: Languages | None
    prompts: Prompts | None
    problems: tuple[str, ...]


READER = TypeAdapter(Audit)
"""Validator of stored audits."""


def save_audit(audit: Audit, path: Path) -> None:
    """Write an audit as JSON to `path`, atomically, replacing an existing file.

    Create missing folders.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(path, orjson.dumps(audit))


def load_audit(path: Path) -> Audit:
    """Read an audit that `save_audit` wrote.

    Raises:
        ValidationError: if the file does not match.
    """
    return READER.validate_json(path.read_bytes())
