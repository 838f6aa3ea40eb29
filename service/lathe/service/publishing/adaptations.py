"""Adaptations up to what is published: shared by `lathe adapt` and its job."""

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version as version_of
from pathlib import Path
from typing import Any

from lathe.service.publishing.context import PublishContext
from lathe.service.publishing.fits import publish_fitted_chain
from lathe.service.publishing.training import build_manifest, require_free_name
from lathe.service.waiting import wait_for_redis
from lathe.training.deciding.adapt import Adaptation, try_candidates
from lathe.training.deciding.adapt_report import to_json
from lathe.training.deciding.requests import AdaptRequest
from lathe.training.encoder.opening import open_encoder
from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.finetuning.certificate import JudgedTexts, certify_encoder
from lathe.transforms.progress import Progress, part_of

JUDGED = "judged"
"""Name of the judged searches in the certificate of a trained encoder."""

TRIALS_SHARE = 0.9
"""Progress once all candidate changes are tried; publishing takes the rest."""


@dataclass(frozen=True)
class PublishedAdaptation:
    """Result of an adaptation: the candidate changes that were tried, and what was published of the recommended one.

    Attributes:
        result: the candidate changes that were tried, and the recommended one.
        published: `encoder` and `chain` with the result of each publication; only what was published is in it.
    """

    result: Adaptation
    published: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Convert the recommendation, the trials and what was published to a JSON-serializable dict."""
        return to_json(self.result) | self.published


def run_adaptation(
    request: AdaptRequest, encoder: TextEncoder, context: PublishContext, on_progress: Progress
) -> PublishedAdaptation:
    """Try candidate changes on judged searches, and publish the recommended change under the request's name.

    A chain of transforms, a trained encoder, or both are published. Nothing is published without a name, or if the
    vectors are to stay as they are.

    Args:
        request: what to adapt, to which judged searches.
        encoder: the encoder.
        context: registries and folders.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        TrainingError, TransformError: as `try_candidates`; nothing is published then.
        ConflictError: if the encoder is to be trained under the name of another one.
    """
    settings = context.settings
    if request.name is not None and request.train:
        require_free_name(request.name, settings)
    trials_progress = part_of(on_progress, 0.0, TRIALS_SHARE)
    with try_candidates(
        request,
        encoder,
        context.home.vectors,
        trials_progress,
        settings.device,
        settings.vector_stores,
        on_work_folder=context.on_work_folder,
    ) as result:
        if request.name is None:
            return PublishedAdaptation(result, {})
        return PublishedAdaptation(
            result, _publish(result, request.name, context, part_of(on_progress, TRIALS_SHARE, 1.0))
        )


def _publish(result: Adaptation, name: str, context: PublishContext, on_progress: Progress) -> dict[str, Any]:
    """Publish the recommended trained encoder and chain of transforms, and return results under `encoder` and `chain`.

    Only what exists is published. The chain was measured on the trained encoder, or on the base encoder without one.
    """
    published: dict[str, Any] = {}
    encoder = result.encoder
    if result.recommended.encoder is not None:
        published["encoder"], encoder = _publish_encoder(result, name, context, on_progress)

    fitted = result.certify(encoder, context.command, on_progress)
    if fitted is not None:
        promote = _decide_promotion(result)
        published["chain"] = publish_fitted_chain(fitted, name, promote, context.registry, on_progress, context.job)
    return published


def _decide_promotion(result: Adaptation) -> bool | None:
    """Decide whether the published version goes live: as requested, or not if the gain may be chance.

    The result None makes the version live if no version is live.
    """
    if result.request.promote is not None or result.is_certain:
        return result.request.promote
    return False


def _publish_encoder(
    result: Adaptation, name: str, context: PublishContext, on_progress: Progress
) -> tuple[dict[str, Any], TextEncoder]:
    request, settings = result.request, context.settings
    trained_spec = result.recommended.encoder
    assert trained_spec is not None  # an encoder was trained
    trained = open_encoder(trained_spec, settings.device, settings.vector_stores)
    searches = result.searches
    judged = JudgedTexts.from_answers(searches.reported, searches.documents)
    certificate = certify_encoder(result.encoder, trained, {JUDGED: judged}, context.home.vectors, on_progress)
    provenance = {
        "command": context.command,
        "job": request.model_dump(mode="json", exclude={"pairs", "test_pairs", "source"}, exclude_defaults=True),
        "gates": {},
        "queries": len(searches.learn.by_query),
        "libraries": {"lathe-training": version_of("lathe-training"), "torch": version_of("torch")},
        "date": datetime.now(UTC).date().isoformat(),
    }
    manifest = build_manifest(result.recommended.candidate.name, result.encoder, trained, certificate, provenance)
    encoders = context.trained
    add_version = partial(
        encoders.publish, name, Path(trained_spec.model), manifest, _decide_promotion(result), context.job
    )
    version, live = wait_for_redis(add_version, on_progress)
    outcome = {"encoder": f"{name}@{version}", "promoted": live, "certificate": certificate}
    spec = encoders.build_spec(name, version, settings.dtype)
    return outcome, open_encoder(spec, settings.device, settings.vector_stores)
