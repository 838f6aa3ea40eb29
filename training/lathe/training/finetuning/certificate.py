"""Certificate of a trained encoder: what it finds of what its base finds, on texts that it was not trained on."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import NO_PROMPT, TextEncoder, encode_queries, with_document_prompt
from lathe.training.finetuning.judged_texts import JobTests, JudgedTexts
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import MIN_TEST_QUERIES, encode_halves
from lathe.transforms.base import QueryPairs
from lathe.transforms.progress import Progress
from lathe.transforms.quality import compare_searches


def certify_encoder(
    base: TextEncoder,
    trained: TextEncoder,
    judged: Mapping[str, JudgedTexts],
    workspace: Path,
    on_progress: Progress,
    corpora: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Compare the searches of a trained encoder with those of its base, and return the certificate as JSON.

    Where the trained encoder comes from does not matter: only the texts must be ones that it was not trained on.

    Args:
        base: encoder before the training.
        trained: encoder after the training.
        judged: queries with known relevant documents, by data set.
        workspace: folder of vectors, where out-of-domain texts are cached.
        on_progress: called with progress in [0, 1] and a message.
        corpora: sources of out-of-domain texts by name, whose halves search each other; None takes the built-in ones.

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
    """Certify an encoder on the tests of the job that trained it, and return the certificate as JSON.

    A target whose test is no search is measured by mteb: `tasks: {name: {metric, before, after, gain}}`.

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
    """Measure the main score of the job's target with both encoders."""
    from lathe.training.finetuning.evaluators import TaskEvaluator  # mteb takes seconds to import
    from lathe.training.finetuning.extras import EvaluatorSettings

    assert tests.target is not None
    evaluator = TaskEvaluator(tests.target, EvaluatorSettings(every=1, prompts=tests.target_prompts))
    before, after = (evaluator.measure(partial(_encode_prompted, encoder)) for encoder in (base, trained))
    metric = evaluator.task.metadata.main_score
    return {"metric": metric, "before": before, "after": after, "gain": after - before}


def _encode_prompted(encoder: TextEncoder, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts that carry their prompts already."""
    return encoder.encode(texts, NO_PROMPT).vectors


def _encode(encoder: TextEncoder, judged: JudgedTexts) -> QueryPairs:
    """Encode queries and documents as searches do: with the prompts of their source, else with the encoder's own."""
    prompts = judged.prompts
    if prompts.anchor or prompts.positive:
        queries = encoder.encode([prompts.anchor + text for text in judged.queries], NO_PROMPT).vectors
        documents = encoder.encode([prompts.positive + text for text in judged.documents], NO_PROMPT).vectors
    else:
        queries = encode_queries(encoder, judged.queries)
        documents = with_document_prompt(encoder).encode(judged.documents).vectors
    return QueryPairs(queries, documents, judged.relevant, judged.excluded)


def _list_warnings(certificate: Mapping[str, Any]) -> list[str]:
    """Return warnings about searches that get worse, that gain nothing, or that are too few."""
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
            warnings.append(
                f"nDCG@10 on {name} changes by {gain:+.4f} ± {half:.4f}: no gain that can be told from chance"
            )
        if measures["queries"] < MIN_TEST_QUERIES:
            warnings.append(f"{name} has {measures['queries']} queries to measure with: few for a reliable mean")

    if not certificate["relevance"]:
        warnings.append("no searches with known relevant documents were left to measure with")
    return warnings
