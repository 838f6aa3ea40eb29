"""Certificate of a trained encoder: retrieval before and after the training, on queries that it was not trained on.

The queries have known relevant documents. They come from the test splits of the job's data sets, or else from held-out
pairs. Split-half retrieval on out-of-domain texts shows what the encoder has lost elsewhere.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.datasets.data_set import DataSet, find_pairs
from lathe.training.datasets.folder import FolderDataSet
from lathe.training.datasets.pairs import PairSettings
from lathe.training.datasets.records import Search, Warnings, normalize_text
from lathe.training.encoder.text_encoder import NO_PROMPT, TextEncoder, encode_queries, with_document_prompt
from lathe.training.errors import DataSetError
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.mixture_builder import JobSources, is_searchable
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import MIN_TEST_QUERIES, encode_halves, find_self_matches, group_pairs
from lathe.training.settings import Prompts
from lathe.transforms.base import QueryPairs
from lathe.transforms.progress import Progress
from lathe.transforms.quality import compare_searches

NO_PROMPTS = Prompts()
"""Prompts of a source that names none."""

MAX_QUERIES = 1000
"""Maximum number of queries of a data set. Of more queries, an even sample is used."""

MAX_DOCUMENTS = 20_000
"""Maximum number of documents of a data set: all relevant documents, and an even sample of the others."""


@dataclass(frozen=True)
class JudgedTexts:
    """Texts of queries and documents, with relevance judgements.

    Attributes:
        queries: texts of the queries.
        documents: texts of the documents, among which each query searches.
        relevant: row of a query and row of a document that is relevant to it, `(p, 2)`; every query has one or more.
        excluded: row of a query and row of a document that equals the query's text, `(e, 2)`.
        prompts: prompts put before the texts; empty prompts mean the encoder's own prompts of queries and documents.
    """

    queries: Sequence[str]
    documents: Sequence[str]
    relevant: NDArray[np.int64]
    excluded: NDArray[np.int64]
    prompts: Prompts = NO_PROMPTS

    @classmethod
    def from_answers(
        cls, answers: Mapping[str, Iterable[str]], distractors: Iterable[str] = (), prompts: Prompts = NO_PROMPTS
    ) -> "JudgedTexts":
        """Build judged texts from queries with relevant documents, and distractors. Unanswered queries are left out.

        A document that equals the query's text does not count as relevant. Queries without another relevant document
        are left out. More than `MAX_QUERIES` queries are sampled evenly. Distractors are sampled evenly so that there
        are at most `MAX_DOCUMENTS` documents, but relevant documents all stay.
        """
        relevant_of = group_pairs((query, text, 1.0) for query, texts in answers.items() for text in texts).by_query
        queries = _sample_evenly(list(relevant_of), MAX_QUERIES)
        relevant_texts = dict.fromkeys(text for query in queries for text in relevant_of[query])
        further = [text for text in dict.fromkeys(distractors) if text not in relevant_texts]
        documents = [*relevant_texts, *_sample_evenly(further, max(0, MAX_DOCUMENTS - len(relevant_texts)))]

        row_of = {text: row for row, text in enumerate(documents)}
        pairs = sorted({(row, row_of[text]) for row, query in enumerate(queries) for text in relevant_of[query]})
        relevant = np.array(pairs, np.int64).reshape(-1, 2)
        return cls(queries, documents, relevant, find_self_matches(queries, documents), prompts)


@dataclass(frozen=True)
class JobTests:
    """Data that a job's trained encoder is certified with.

    Attributes:
        judged: queries and documents with relevance judgements, by the name of the data set.
        target: target of the job if its test is not a search, to be measured by mteb; None if there is none.
        target_prompts: prompts of that target.
        warnings: messages on data sets that are not measured, for the certificate.
    """

    judged: dict[str, JudgedTexts] = field(default_factory=dict)
    target: FolderDataSet | None = None
    target_prompts: Prompts = NO_PROMPTS
    warnings: list[str] = field(default_factory=list)


def read_job_tests(job: TrainingJob) -> JobTests:
    """Read the searches that a job's trained encoder is certified with, without queries that it is trained on.

    Searches are the test splits of retrieval and pairs data sets and of the target. For data sets without a test, they
    are the pairs that a training with `holds_out` leaves out.

    Returns:
        The searches by data set, the target if mteb must measure it, and warnings.

    Raises:
        JobError: if a source cannot be used.
        DataSetError: if a data set that the job names itself cannot be read.
    """
    sources = JobSources(job)
    builder, target = sources.builder, sources.target
    mixture, held_out = sources.hold_out_for_certificate(sources.split()[0])
    anchor_prompts = [builder.sources[name].prompts.anchor for name in mixture.names]
    # In the mixture, anchors carry the prompt of their data set. In tests they do not.
    trained_on = {
        normalize_text(anchor.removeprefix(anchor_prompts[source]))
        for anchor, source in zip(mixture.anchors, mixture.sources.tolist(), strict=True)
    }
    tests = JobTests()

    for name, data in builder.data.items():
        if not is_searchable(data):
            continue
        prompts = builder.sources[name].prompts
        if "test" in data.list_splits():
            answers, distractors = _read_test_answers(data)
            _add_judged(tests, name, _exclude_queries(answers, trained_on), distractors, prompts)
        else:
            answers = _exclude_queries(_gather_held_out(held_out, name, prompts), trained_on)
            _add_judged(tests, name, answers, (), prompts)

    if target is None or job.target is None or "test" not in target.list_splits():
        return tests
    if is_searchable(target):
        answers, distractors = _read_test_answers(target)
        _add_judged(tests, target.name, _exclude_queries(answers, trained_on), distractors, job.target.prompts)
        return tests
    return JobTests(tests.judged, target, job.target.prompts, tests.warnings)


def _add_judged(
    tests: JobTests, name: str, answers: dict[str, list[str]], distractors: Iterable[str], prompts: Prompts
) -> None:
    """Add the judged texts of a data set to `tests`, in place, or a warning if no queries are left."""
    judged = JudgedTexts.from_answers(answers, distractors, prompts)
    if judged.queries:
        tests.judged[name] = judged
    else:
        tests.warnings.append(f"{name} is not measured: it has no queries that the training has not seen")


def _read_test_answers(data: DataSet) -> tuple[dict[str, list[str]], list[str]]:
    """Read the relevant documents of each query of a test split, and all documents of the corpus. Both may be empty.

    The corpus is empty for data sets without one. Both are empty if the split does not contain a positive pair.
    """
    if isinstance(data, FolderDataSet) and data.task == "retrieval":
        search = data.read_test(Warnings())
        assert isinstance(search, Search)
        texts = {key: f"{title} {text}".strip() for key, (title, text) in search.corpus.items()}
        answers: dict[str, list[str]] = {}
        for query, grades in search.relevant.items():
            relevant = [texts[document] for document, grade in grades.items() if grade > 0]
            answers.setdefault(search.queries[query], []).extend(relevant)
        return answers, list(texts.values())

    try:
        pairs = find_pairs(data, PairSettings(split="test")).pairs
    except DataSetError:  # a test without a positive pair measures nothing
        return {}, []
    answers = {}
    for pair in pairs:
        answers.setdefault(pair.anchor, []).append(pair.positive)
    return answers, []


def _exclude_queries(answers: dict[str, list[str]], trained_on: set[str]) -> dict[str, list[str]]:
    return {query: texts for query, texts in answers.items() if normalize_text(query) not in trained_on}


def _gather_held_out(held_out: Mixture, name: str, prompts: Prompts) -> dict[str, list[str]]:
    """Collect the held-out positives of each anchor of a data set, without the prompts."""
    answers: dict[str, list[str]] = {}
    for row in np.flatnonzero(held_out.sources == held_out.names.index(name)):
        anchor = held_out.anchors[row].removeprefix(prompts.anchor)
        answers.setdefault(anchor, []).append(held_out.positives[row].removeprefix(prompts.positive))
    return answers


def _sample_evenly(texts: Sequence[str], count: int) -> list[str]:
    """Return at most `count` of the texts, at even distances, in order."""
    rows = np.linspace(0, len(texts) - 1, min(len(texts), count)).astype(int)
    return [texts[row] for row in rows]


def certify_encoder(
    base: TextEncoder,
    trained: TextEncoder,
    judged: Mapping[str, JudgedTexts],
    workspace: Path,
    on_progress: Progress,
    corpora: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Compare a trained encoder with the base on queries and out-of-domain texts, as nDCG@10 gains and warnings.

    Where the trained encoder comes from does not matter, but the texts must not have been used to train it.

    Args:
        base: encoder before the training.
        trained: encoder after the training.
        judged: queries with known relevant documents, by data set.
        workspace: folder where out-of-domain texts are cached.
        on_progress: called with progress in [0, 1] and a message.
        corpora: sources of out-of-domain texts by name, for split-half retrieval; None takes the built-in corpora.

    Returns:
        `{relevance: {data set: searches}, out_of_domain: {corpus: searches}, warnings: […]}`, where `searches` is
        `{queries, documents, ndcg_at_10: {before, after, gain, ci95}, recall_at_10: {…}}`, paired by query, as
        `lathe.transforms.quality.compare_searches` returns it.

    Raises:
        SourceError: if a corpus cannot be read.
    """
    sources = list_built_in_corpora(None) if corpora is None else corpora
    out_of_domain = OutOfDomainTexts(sources, workspace / "out_of_domain")
    steps = len(judged) + len(out_of_domain.sources)
    certificate: dict[str, Any] = {"relevance": {}, "out_of_domain": {}, "warnings": []}

    for done, (name, texts) in enumerate(judged.items()):
        on_progress(done / steps, f"certifying on {name}")
        certificate["relevance"][name] = compare_searches(_encode(base, texts), _encode(trained, texts))

    for done, name in enumerate(out_of_domain.sources, len(judged)):
        on_progress(done / steps, f"certifying on out-of-domain text: {name}")
        halves = [encode_halves(out_of_domain.read(name), encoder) for encoder in (base, trained)]
        if halves[0] is None or halves[1] is None:
            certificate["warnings"].append(f"{name} has too few texts that are long enough to be cut in two")
        else:
            certificate["out_of_domain"][name] = compare_searches(halves[0], halves[1])

    certificate["warnings"] += _list_warnings(certificate)
    return certificate


def certify_job(
    base: TextEncoder, trained: TextEncoder, tests: JobTests, workspace: Path, on_progress: Progress
) -> dict[str, Any]:
    """Compare a trained encoder with its base on the tests of the job that trained it, and return the certificate.

    The certificate is as `certify_encoder` returns it. A target whose test is not a search is measured by mteb and
    added: `tasks: {name: {metric, before, after, gain}}`.

    Raises:
        JobError: if mteb cannot measure the target.
    """
    certificate = certify_encoder(base, trained, tests.judged, workspace, on_progress)
    certificate["warnings"] = [*tests.warnings, *certificate["warnings"]]
    if tests.target is not None:
        on_progress(1.0, f"measuring {tests.target.name} with mteb")
        certificate["tasks"] = {tests.target.name: _measure_task(base, trained, tests)}
    return certificate


def _measure_task(base: TextEncoder, trained: TextEncoder, tests: JobTests) -> dict[str, Any]:
    """Measure both encoders on the target's test with mteb, and return the metric with its change."""
    from lathe.training.finetuning.evaluators import TaskEvaluator  # mteb takes seconds to import
    from lathe.training.finetuning.extras import EvaluatorSettings

    assert tests.target is not None
    evaluator = TaskEvaluator(tests.target, EvaluatorSettings(every=1, prompts=tests.target_prompts))
    before, after = (evaluator.measure(partial(_encode_prompted, encoder)) for encoder in (base, trained))
    metric = evaluator.task.metadata.main_score
    return {"metric": metric, "before": before, "after": after, "gain": after - before}


def _encode_prompted(encoder: TextEncoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts that already contain their prompts to vectors `(n, d)`, so that the encoder adds none."""
    return encoder.encode(texts, NO_PROMPT).vectors


def _encode(encoder: TextEncoder, judged: JudgedTexts) -> QueryPairs:
    """Encode the queries and documents of judged texts, and return the vectors with the relevance judgements.

    The texts get the prompts of their data set, or the encoder's own prompts if the data set has none.
    """
    prompts = judged.prompts
    if prompts.anchor or prompts.positive:
        queries = encoder.encode([prompts.anchor + text for text in judged.queries], NO_PROMPT).vectors
        documents = encoder.encode([prompts.positive + text for text in judged.documents], NO_PROMPT).vectors
    else:
        queries = encode_queries(encoder, judged.queries)
        documents = with_document_prompt(encoder).encode(judged.documents).vectors
    return QueryPairs(queries, documents, judged.relevant, judged.excluded)


def _list_warnings(certificate: Mapping[str, Any]) -> list[str]:
    """Return warnings about retrieval that gets worse or has no significant gain, few queries, or missing queries.

    "No significant gain" means that the confidence interval of the change of nDCG@10 contains 0.
    """
    warnings = []
    for group, wording in (
        ("relevance", "searches of {} get worse"),
        ("out_of_domain", "searches of other text, {}, get worse"),
    ):
        for name, measures in certificate[group].items():
            gain, half = measures["ndcg_at_10"]["gain"], measures["ndcg_at_10"]["ci95"] or 0.0
            if gain < -half:
                warnings.append(f"{wording.format(name)}: nDCG@10 changes by {gain:+.4f} ± {half:.4f}")

    for name, measures in certificate["relevance"].items():
        gain, half = measures["ndcg_at_10"]["gain"], measures["ndcg_at_10"]["ci95"] or 0.0
        if abs(gain) <= half:
            warnings.append(f"nDCG@10 on {name} changes by {gain:+.4f} ± {half:.4f}: the gain is not significant")
        if measures["queries"] < MIN_TEST_QUERIES:
            warnings.append(f"{name} has {measures['queries']} queries, too few for a reliable mean")

    if not certificate["relevance"]:
        warnings.append("no queries with known relevant documents were left to measure with")
    return warnings
