"""Audit of encoders: stored vectors of the evaluation are measured, and a few further texts are encoded."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from lathe.training.evaluation.encoders import BAG_OF_WORDS, Member
from lathe.training.evaluation.inspection import EncodedGroup
from lathe.training.evaluation.method_cache import normalize_rows
from lathe.training.evaluation.store import text_key
from lathe.transforms import Moments
from lathe.transforms.errors import TransformError
from lathe.transforms.vectors import FloatArray, require_finite
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


def audit_group(encoded: EncodedGroup) -> list[Audit]:
    """Return the audit of each encoder of a group: load all from disk, or measure all and store them.

    An audit with problems is not stored, so the next run repeats it.
    """
    folder = encoded.out / "audits"
    paths = [folder / f"{_audit_key(member, encoded)}.json" for member in encoded.group.members]
    if all(path.exists() for path in paths):
        return [load_audit(path) for path in paths]
    audits = Probe(encoded).measure()
    for path, audit in zip(paths, audits, strict=True):
        if not audit.problems:
            save_audit(audit, path)
    return audits


def _audit_key(member: Member, encoded: EncodedGroup) -> str:
    """Return the file name of a member's audit: a digest of version, encoder output, prompts, tasks, sentences."""
    what = [EDITION, member.output, dict(member.prompts), sorted(encoded.task_keys), encoded.digest]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:32]


class Probe:
    """Measurement of all members of a group.

    If a part fails, such as the encoding of a text or prompt, the problem is recorded and the other parts go on.

    Args:
        encoded: group of encoders, with their stored vectors and the texts; tasks with an error are ignored.

    Attributes:
        problems: messages of failed parts, one list for each member.
    """

    def __init__(self, encoded: EncodedGroup) -> None:
        self.group, self.stores = encoded.group, encoded.stores
        self.sentences = encoded.sentences
        self.encode, self.report = encoded.encode, encoded.report
        self.tasks = [task for task in encoded.read_tasks() if task.error is None]
        self.first = self.group.members[0]
        self.problems: list[list[str]] = [[] for _ in self.group.members]

    def measure(self) -> list[Audit]:
        """Measure all parts and return an audit for each member; a failed part is None and named in `problems`."""
        parts = zip(
            self.measure_norms(), self.measure_corpus(), self.measure_languages(), self.measure_prompts(), strict=True
        )
        return [Audit(*each, tuple(problems)) for each, problems in zip(parts, self.problems, strict=True)]

    def measure_norms(self) -> list[Norms | None]:
        """Encode texts of the suite without normalization and measure the norms, for each member.

        Texts that cannot be encoded, and vectors with NaN or inf, are left out and counted in `problems`; without any
        other vector, the result is None.
        """
        texts = sample_texts(list_suite_texts(self.tasks), NORM_TEXTS)
        self.report(f"auditing the norms of {self.first.name}")
        try:
            vectors: list[FloatArray] = list(self.group.encode_unnormalized(texts))
        except Exception:  # models raise anything; which texts it was is found one by one
            vectors = self._encode_one_by_one(texts)
        found = []
        for index, rows in enumerate(vectors):
            finite = np.isfinite(rows).all(axis=1)
            if not finite.all():
                count = int((~finite).sum())
                self.problems[index].append(f"{count} of {len(texts)} texts give NaN or inf; the norms leave them out")
            found.append(measure_norms(rows[finite]))
        return found

    def _encode_one_by_one(self, texts: Sequence[str]) -> list[FloatArray]:
        """Encode texts one at a time, unnormalized; return each member's vectors `(m, d)` of those that do not fail.

        The number of failing texts is recorded in `problems`.
        """
        found, errors = [], []
        for text in texts:
            try:
                found.append(self.group.encode_unnormalized([text]))
            except Exception as error:  # as above
                errors.append(error)
        if errors:
            left_out = f"{len(errors)} of {len(texts)} texts cannot be encoded; the norms leave them out"
            self._record_failure(left_out, errors[0])
        empty = [np.empty((0, member.dimensions), np.float32) for member in self.group.members]
        return [np.concatenate([rest, *some]) for rest, *some in zip(empty, *found, strict=True)]

    def measure_languages(self) -> list[Languages | None]:
        """Measure the mean vector of each language, for each member; a part is None if it fails.

        Texts are encoded under the default prompt, without the tasks' prompts, which would themselves move the mean.
        Vectors that the stores lack are added to them.
        """
        chosen = choose_language_texts(self.tasks)
        asked = [(None, text) for texts in chosen.texts.values() for text in texts]

        def measure(index: int) -> Languages:
            """Compute the means by language of one member from its stored vectors."""
            vectors = {
                name: self._load_vectors(index, [text_key(text, self.first.prompt(None)) for text in texts])
                for name, texts in chosen.texts.items()
            }
            return Languages(chosen.count, tuple(measure_language_means(vectors)), chosen.few, tuple(chosen.unclear))

        return self._measure_members("μ by language", measure, lambda: self.encode(asked))

    def measure_prompts(self) -> list[Prompts | None]:
        """Measure the mean of the same sentences with each prompt and none, for each member; None for a bag of words.

        Encoders without prompts are measured with `GENERIC_PROMPTS`. A prompt that fails is left out and recorded in
        `problems`. Vectors that the stores lack are added to them.
        """
        if self.first.name == BAG_OF_WORDS:
            return [None]
        sentences = sample_texts(self.sentences, PROMPT_SENTENCES)
        plain = [text_key(sentence) for sentence in sentences]
        own = {name: text for name, text in self.first.prompts.items() if text}
        keys = {}
        for name, prompt in (own or GENERIC_PROMPTS).items():
            try:
                self.encode([(name, text) if own else (None, prompt + text) for text in sentences])
            except Exception as error:  # models raise anything
                self._record_failure(f"μ under the prompt {name} cannot be measured", error)
                continue
            keys[name] = prompt, [text_key(text, prompt) if own else text_key(prompt + text) for text in sentences]

        def measure(index: int) -> Prompts:
            """Compute the means by prompt of one member from its stored vectors."""
            bare = self._load_vectors(index, plain)
            norm = float(np.linalg.norm(bare.mean(axis=0, dtype=np.float64)))
            means = [
                measure_prompt_mean(name, prompt, self._load_vectors(index, some), bare)
                for name, (prompt, some) in keys.items()
            ]
            return Prompts(len(sentences), norm, not own, tuple(means))

        return self._measure_members("μ by prompt", measure, lambda: self._encode_plain(sentences))

    def _encode_plain(self, texts: Sequence[str]) -> None:
        """Encode texts that the stores lack without any prompt, even a default one; store the unit vectors."""
        missing = [text for text in texts if not all(text_key(text) in store for store in self.stores)]
        if missing:
            for store, vectors in zip(self.stores, self.group.encode_unnormalized(missing, plain=True), strict=True):
                new = [position for position, text in enumerate(missing) if text_key(text) not in store]
                store.add([text_key(missing[position]) for position in new], normalize_rows(vectors[new]))

    def measure_corpus(self) -> list[CorpusMean | None]:
        """Measure the mean of the corpus by sample size, and its direction, for each member; None where this fails."""

        def measure(index: int) -> CorpusMean:
            """Compute the mean of the corpus of one member from its stored vectors."""
            member = self.group.members[index]
            self.report(f"auditing the mean of {member.name}")
            vectors = self._load_vectors(index, [text_key(text, member.prompt(None)) for text in self.sentences])
            moments = Moments.from_vectors(vectors)
            return CorpusMean(tuple(measure_mean_growth(vectors, moments)), measure_direction(vectors, moments))

        return self._measure_members("μ of the corpus", measure)

    def _measure_members(
        self, what: str, measure: Callable[[int], Part], encode: Callable[[], None] | None = None
    ) -> list[Part | None]:
        """Call `encode` once, then `measure` with each member's index; return the parts, None where either call failed.

        Failures are recorded in `problems`: of `encode` for all members, of `measure` for its member.

        Args:
            what: name of the part, for messages.
            measure: returns a member's part by its index; only a `TransformError` is caught.
            encode: adds missing vectors to the stores, or None; any exception is caught.
        """
        try:
            if encode is not None:
                encode()
        except Exception as error:  # models raise anything
            self._record_failure(f"{what} cannot be measured", error)
            return [None] * len(self.stores)
        found: list[Part | None] = []
        for index, problems in enumerate(self.problems):
            try:
                found.append(measure(index))
            except TransformError as error:
                problems.append(f"{what} cannot be measured: {error}")
                found.append(None)
        return found

    def _load_vectors(self, index: int, keys: Sequence[bytes]) -> FloatArray:
        """Return stored vectors `(n, d)` of a member by text keys.

        Raises:
            InputError: if a vector holds NaN or inf.
            KeyError: if a key has no vector.
        """
        vectors = self.stores[index].get(keys)
        require_finite(vectors)
        return vectors

    def _record_failure(self, what: str, error: Exception) -> None:
        """Append a failure message to the problems of every member."""
        for problems in self.problems:
            problems.append(f"{what}: {type(error).__name__}: {error}")
