"""Audit of encoders: stored vectors of the evaluation are measured, and a few further texts are encoded."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.evaluation.encoders import EvaluatedEncoder, Member
from lathe.training.evaluation.worker import TaskDescription
from lathe.transforms import Moments
from lathe.transforms.errors import TransformError
from lathe.transforms.vectors import FloatArray, require_finite
from research.encoders import BAG_OF_WORDS
from research.fitted_methods.method_cache import normalize_rows
from research.mean_bias_audit.means import (
    Norms,
    measure_direction,
    measure_language_means,
    measure_mean_growth,
    measure_norms,
    measure_prompt_mean,
)
from research.mean_bias_audit.stored_audit import (
    Audit,
    CorpusMean,
    Languages,
    Prompts,
    load_audit,
    save_audit,
)
from research.mean_bias_audit.texts import (
    NORM_TEXTS,
    PROMPT_SENTENCES,
    choose_language_texts,
    list_suite_texts,
    sample_texts,
)

GENERIC_PROMPTS = {"generic query": "query: ", "generic passage": "passage: "}
"""Prompts to try on encoders that have none, to see the effect of words that they were not trained to see there."""
EDITION = 2
"""Version of the measured values; an audit stored under another version is repeated."""

Part = TypeVar("Part")


@dataclass(frozen=True)
class EncodedSuite:
    """Encoder and its stored vectors of a suite and a corpus.

    Attributes:
        out: output folder of the evaluation.
        encoder: the encoder.
        sentences: sentences of the corpus.
        digest: hash of these sentences.
        task_keys: keys of the suite's tasks.
        read_tasks: returns the tasks with their texts, which is slow.
        report: called with a message before each step.
    """

    out: Path
    encoder: EvaluatedEncoder
    sentences: Sequence[str]
    digest: str
    task_keys: Sequence[str]
    read_tasks: Callable[[], Sequence[TaskDescription]]
    report: Callable[[str], None]


def audit_encoder(encoded: EncodedSuite) -> Audit:
    """Return the audit of an encoder: load it from disk, or measure and store it.

    An audit with problems is not stored, so the next run repeats it.
    """
    path = encoded.out / "audits" / f"{_audit_key(encoded.encoder.member, encoded)}.json"
    if path.exists():
        return load_audit(path)
    audit = Probe(encoded).measure()
    if not audit.problems:
        save_audit(audit, path)
    return audit


def _audit_key(member: Member, encoded: EncodedSuite) -> str:
    """Return the file name of an encoder's audit: a digest of version, encoder output, prompts, tasks, sentences."""
    what = [EDITION, member.output, dict(member.prompts), sorted(encoded.task_keys), encoded.digest]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


class Probe:
    """Measurement of an encoder.

    If a part fails, such as the encoding of a text or prompt, the problem is recorded and the other parts go on.

    Args:
        encoded: encoder, with its stored vectors and the texts; tasks with an error are ignored.

    Attributes:
        problems: messages of failed parts.
    """

    def __init__(self, encoded: EncodedSuite) -> None:
        self.encoder = encoded.encoder.encoder
        self.member = encoded.encoder.member
        self.sentences = encoded.sentences
        self.evaluated, self.report = encoded.encoder, encoded.report
        self.tasks = [task for task in encoded.read_tasks() if task.error is None]
        self.problems: list[str] = []

    def measure(self) -> Audit:
        """Measure the norms, and the mean vector by sample size, language and prompt.

        A part that fails is None in the result, and `problems` names it.
        """
        parts = self.measure_norms(), self.measure_corpus(), self.measure_languages(), self.measure_prompts()
        return Audit(*parts, tuple(self.problems))

    def measure_norms(self) -> Norms | None:
        """Encode texts of the suite without normalization and measure the norms.

        Texts that cannot be encoded, and vectors with NaN or inf, are left out and counted in `problems`; without any
        other vector, the result is None.
        """
        texts = sample_texts(list_suite_texts(self.tasks), NORM_TEXTS)
        self.report(f"auditing the norms of {self.member.name}")
        try:
            rows: FloatArray = self.encoder.encode(texts, normalize=False).vectors
        except Exception:  # models raise anything; which texts it was is found one by one
            rows = self._encode_one_by_one(texts)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            count = int((~finite).sum())
            self.problems.append(f"{count} of {len(texts)} texts give NaN or inf; the norms leave them out")
        return measure_norms(rows[finite])

    def _encode_one_by_one(self, texts: Sequence[str]) -> FloatArray:
        """Encode texts one at a time, unnormalized, and return the vectors `(m, d)` of those that do not fail.

        The number of failing texts is recorded in `problems`.
        """
        found: list[FloatArray] = [np.empty((0, self.member.dimensions), np.float32)]
        errors = []
        for text in texts:
            try:
                found.append(self.encoder.encode([text], normalize=False).vectors)
            except Exception as error:  # as above
                errors.append(error)
        if errors:
            left_out = f"{len(errors)} of {len(texts)} texts cannot be encoded; the norms leave them out"
            self._record_failure(left_out, errors[0])
        return np.concatenate(found)

    def measure_languages(self) -> Languages | None:
        """Measure the mean vector of each language.

        The result is None if it fails. Texts are encoded under the default prompt, without the tasks' prompts, which
        would themselves move the mean.
        """
        chosen = choose_language_texts(self.tasks)

        def measure() -> Languages:
            vectors = {name: self._encode(texts) for name, texts in chosen.texts.items()}
            return Languages(chosen.count, tuple(measure_language_means(vectors)), chosen.few, tuple(chosen.unclear))

        return self._measure_part("μ by language", measure)

    def measure_prompts(self) -> Prompts | None:
        """Measure the mean of the same sentences with each prompt and none.

        The result is None for a bag of words. Encoders without prompts are measured with `GENERIC_PROMPTS`. A prompt
        that fails is left out and recorded in `problems`.
        """
        if self.member.name == BAG_OF_WORDS:
            return None
        sentences = sample_texts(self.sentences, PROMPT_SENTENCES)
        own = {name: text for name, text in self.member.prompts.items() if text}
        prompted = {}
        for name, prompt in (own or GENERIC_PROMPTS).items():
            try:
                texts = sentences if own else [prompt + text for text in sentences]
                prompted[name] = prompt, self._encode(texts, name if own else None)
            except Exception as error:  # models raise anything
                self._record_failure(f"μ under the prompt {name} cannot be measured", error)

        def measure() -> Prompts:
            # Without any prompt, even a default one.
            bare = normalize_rows(self.encoder.encode(sentences, normalize=False, prompt_name=NO_PROMPT).vectors)
            require_finite(bare)
            norm = float(np.linalg.norm(bare.mean(axis=0, dtype=np.float64)))
            means = [measure_prompt_mean(name, prompt, vectors, bare) for name, (prompt, vectors) in prompted.items()]
            return Prompts(len(sentences), norm, not own, tuple(means))

        return self._measure_part("μ by prompt", measure)

    def measure_corpus(self) -> CorpusMean | None:
        """Measure the mean of the corpus by sample size, and its direction.

        The result is None if this fails.
        """

        def measure() -> CorpusMean:
            self.report(f"auditing the mean of {self.member.name}")
            vectors = self._encode(self.sentences)
            moments = Moments.from_vectors(vectors)
            return CorpusMean(tuple(measure_mean_growth(vectors, moments)), measure_direction(vectors, moments))

        return self._measure_part("μ of the corpus", measure)

    def _measure_part(self, what: str, measure: Callable[[], Part]) -> Part | None:
        """Return what `measure` returns, or None with a problem recorded if it fails.

        Args:
            what: name of the part, for messages.
            measure: encodes texts and returns the part.
        """
        try:
            return measure()
        except TransformError as error:
            self.problems.append(f"{what} cannot be measured: {error}")
        except Exception as error:  # models raise anything
            self._record_failure(f"{what} cannot be measured", error)
        return None

    def _encode(self, texts: Sequence[str], prompt_name: str | None = None) -> FloatArray:
        """Return the unit vectors `(n, d)` of texts, which the encoder has stored if they were encoded before."""
        return self.evaluated.encode(texts, prompt_name, lambda _: None)

    def _record_failure(self, what: str, error: Exception) -> None:
        self.problems.append(f"{what}: {type(error).__name__}: {error}")
