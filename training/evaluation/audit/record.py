"""What an audit of an encoder holds, and how it lies on disk."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import TypeAdapter

from training.evaluation.audit.measure import Direction, LanguageMean, MeanPoint, Norms, PromptMean
from transforms.files import replace_synced


@dataclass(frozen=True)
class CorpusMean:
    """μ of the corpus: `growth` by sample, `direction` beside the first principal component."""

    growth: tuple[MeanPoint, ...]
    direction: Direction


@dataclass(frozen=True)
class Languages:
    """μ over the languages of the suite.

    Attributes:
        texts: of each language.
        means: by language, each with the running mean up to it.
        few: languages left out because they have fewer than 50 texts, with how many they have.
        unclear: data sets left out, whose texts are of several languages or of none that is named.
    """

    texts: int
    means: tuple[LanguageMean, ...]
    few: Mapping[str, int]
    unclear: tuple[str, ...]


@dataclass(frozen=True)
class Prompts:
    """μ of the same sentences under each prompt.

    Attributes:
        texts: sentences.
        plain_norm: ‖μ‖ without a prompt.
        generic: whether the encoder has no prompts, so that generic ones were tried.
        means: by prompt.
    """

    texts: int
    plain_norm: float
    generic: bool
    means: tuple[PromptMean, ...]


@dataclass(frozen=True)
class Audit:
    """What is odd about an encoder's vectors.

    Attributes:
        norms: before they are brought to unit length; None where no text could be encoded.
        corpus: its mean there.
        languages: its means by language of the suite.
        prompts: its means by prompt; None for a bag of words, which takes none.
        problems: what could not be measured, and why; such a part is None too.
    """

    norms: Norms | None
    corpus: CorpusMean | None
    languages: Languages | None
    prompts: Prompts | None
    problems: tuple[str, ...]


READER = TypeAdapter(Audit)


def save_audit(audit: Audit, path: Path) -> None:
    """Write an audit down, the folder with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_synced(path, orjson.dumps(audit))


def load_audit(path: Path) -> Audit:
    """An audit that was written down."""
    return READER.validate_json(path.read_bytes())
