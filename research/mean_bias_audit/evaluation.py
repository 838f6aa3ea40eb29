"""Evaluation that also audits every encoder."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from lathe.training.errors import EvaluationError
from lathe.training.evaluation.encoders import EvaluatedEncoder
from lathe.training.evaluation.run import EncoderResult, StagedProgress
from lathe.training.evaluation.worker import Workers
from lathe.training.workspace import lock_folder
from lathe.transforms.progress import Progress
from research.few_sentences import FewSentences
from research.fitted_methods.evaluation import FittedEvaluation, FittedResults
from research.mean_bias_audit.probe import EncodedSuite, audit_encoder
from research.mean_bias_audit.stored_audit import Audit


@dataclass(frozen=True)
class AuditRequest(FewSentences):
    """Request for an evaluation with an audit, which needs the corpus."""

    @property
    def needs_corpus(self) -> bool:
        """Always True: the mean of the corpus is measured."""
        return True


class FinishedProgress(StagedProgress):
    """Progress while an encoder is audited: the stages of its evaluation are done."""

    def report(self, stage: str, fraction: float, sentence: str) -> None:
        """Call `on_progress` with the progress at the end of the encoder."""
        self.on_progress((self.encoder + 1) / self.encoders, sentence)


class AuditedEvaluation(FittedEvaluation):
    """Evaluation that audits each encoder after its methods are scored.

    Attributes:
        audits: audit of each encoder, by name.
    """

    def __init__(self, request: AuditRequest, on_progress: Progress) -> None:
        super().__init__(request, on_progress)
        self.audits: dict[str, Audit] = {}

    def run_encoder(self, encoder: EvaluatedEncoder, workers: Workers) -> EncoderResult:
        """Score the methods of an encoder, then audit its vectors."""
        result = super().run_encoder(encoder, workers)
        progress = self.progress
        self.progress = FinishedProgress(progress.on_progress, progress.encoders)
        self.progress.begin_encoder(progress.encoder)
        encoded = EncodedSuite(
            out=self.request.out,
            encoder=encoder,
            sentences=self.sentences,
            digest=self.digest,
            task_keys=[t.key for t in self.entries if t.key in self.tasks and self.tasks[t.key].error is None],
            read_tasks=partial(self.collect, self.entries, encoder.member.prompts, workers),
            report=partial(self.progress.report, "encode", 1.0),
        )
        self.audits[encoder.member.name] = audit_encoder(encoded)
        self.progress = progress
        return result


def evaluate_and_audit(request: AuditRequest, on_progress: Progress) -> tuple[FittedResults, Mapping[str, Audit]]:
    """Score every method of every encoder on every task, and audit the encoders.

    A stopped run is resumed.

    Raises:
        EvaluationError: if another process evaluates in the same folder, or no data set can be evaluated.
        EncoderError: if no encoder can be used.
        SourceError: if the corpus cannot be read.
    """
    busy = EvaluationError(f"another evaluation is writing to {request.out.name}; name another folder with --out")
    with lock_folder(request.out, busy):
        evaluation = AuditedEvaluation(request, on_progress)
        return evaluation.run(), evaluation.audits
