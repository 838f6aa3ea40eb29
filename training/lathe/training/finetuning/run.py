"""A training job, from its settings to a model that can be served.

OUT/
├── job.json         settings and base model, to resume only the same job
├── reference/       vectors of texts by the base model and by the auxiliary encoder        reference.py
├── targets/         data that the regularizer has prepared         regularizers/
├── training/        checkpoints, and the log progress.jsonl        trainer.py
├── training.json    summary of the training
├── model/           a plain sentence-transformers model
└── adapter/         LoRA's adapters, if the job keeps them         lora.py
"""

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from lathe.training.errors import JobError
from lathe.training.finetuning.evaluators import Evaluator
from lathe.training.finetuning.job import TrainingJob
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.mixture_builder import JobSources, MixtureBuilder
from lathe.training.finetuning.reference import list_prompt_warnings
from lathe.training.finetuning.regularizers.registry import create_regularizer
from lathe.training.finetuning.regularizers.regularizer import Regularizer
from lathe.training.journal import find_changed_setting
from lathe.training.workspace import lock_folder
from lathe.transforms.files import replace_synced, sync_folder
from lathe.transforms.progress import Progress

if TYPE_CHECKING:
    from lathe.training.finetuning.lora import LoraAdapter


_BATCH = 1000
"""Number of texts that are tokenized at once."""

log = logging.getLogger(__name__)


def _list_truncation_warnings(encoder: Encoder, mixture: Mixture) -> Iterator[str]:
    """Yield a warning for each kind of text (anchors, positives, hard negatives) of which some will be truncated.

    The warning says how many. Nothing is yielded for a static encoder, which reads texts of any length.
    """
    if encoder.static:
        return

    kinds = {
        "anchors": mixture.anchors,
        "positives": mixture.positives,
        "hard negatives": (text for pair_negatives in mixture.negatives for text in pair_negatives),
    }
    for kind, texts in kinds.items():
        distinct = set(texts)
        if count := count_truncated(encoder, distinct):
            yield (
                f"{count:,} of {len(distinct):,} distinct {kind} have more tokens than the {encoder.max_length} that "
                "are read of a text; the rest is cut off"
            )


def count_truncated(encoder: Encoder, texts: Iterable[str]) -> int:
    """Count the texts that have more tokens than the encoder reads.

    A text with fewer characters than the encoder reads tokens is not tokenized, because a token has at least one
    character.
    """
    cuts = [encoder.cut(text) for text in texts]
    truncated = sum(not cut.whole for cut in cuts)
    candidates = [cut.text for cut in cuts if cut.whole and len(cut.text) > encoder.max_length - 2]

    for start in range(0, len(candidates), _BATCH):
        batch = candidates[start : start + _BATCH]
        ids = encoder.model.tokenizer(batch, truncation=False, verbose=False)["input_ids"]
        truncated += sum(len(tokens) > encoder.max_length for tokens in ids)

    return truncated


OFFLINE_SHARE = 0.2
"""Share of the progress for the work before training: encoding a text costs one forward pass, training about three."""
OFFLINE_HOURS = 24
"""Hours that the other processes of torchrun wait for the first process before training."""
MODEL, JOB, SUMMARY, ADAPTER, REFERENCE = "model", "job.json", "training.json", "adapter", "reference"
"""Names of files and folders in the job's folder."""


@dataclass(frozen=True)
class _TrainingOutcome:
    """Result of a finished job.

    Attributes:
        mixture: pairs trained on.
        regularizer: the regularizer, prepared.
        summary: summary of the training, as in training.json.
        warnings: warnings for the user.
        model: folder of the trained model.
    """

    mixture: Mixture
    regularizer: Regularizer
    summary: dict[str, Any]
    warnings: list[str]
    model: Path


def run_training(
    method: str,
    job: TrainingJob,
    spec: EncoderSpec,
    device: str | None,
    out: Path,
    on_progress: Progress,
    auxiliary: EncoderSpec = DEFAULT_ENCODER,
    holds_out: bool = False,
) -> _TrainingOutcome:
    """Run or resume a training job, and write model, checkpoints and log to `out`. Another or finished job raises.

    Args:
        method: name of the training method, as in `METHODS`.
        job: settings of the job.
        spec: spec of the base model.
        device: device to train on; None for the default.
        out: the job's folder.
        on_progress: called with progress in [0, 1] and a message.
        auxiliary: spec of the encoder that hard negatives are mined with.
        holds_out: whether pairs of sources without a test are left out of the training, so that the trained encoder can
            be certified with them; see `lathe.training.finetuning.certificate`.

    Returns:
        The mixture, the regularizer, a summary, warnings and the model's folder.

    Raises:
        JobError: if the job cannot be done as described, or the folder holds another job or a finished one.
    """
    run = _TrainingRun(method, job, spec, device, out, on_progress, auxiliary, holds_out)
    if get_process_rank() > 0:  # of torchrun; the first process holds the lock of the folder
        return run.run_all()
    with lock_folder(out, JobError(f"another job is writing to {out}; name another folder with --out")):
        return run.run_all()


def get_process_rank() -> int:
    """Return the rank of this process under torchrun, or 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def _let_first_process_go_first(device: str | None) -> Iterator[None]:
    """Run a block in torchrun's first process, and afterwards in the others, which find the results on disk.

    Without torchrun, the block just runs.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return

    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu", timeout=timedelta(hours=OFFLINE_HOURS))
    with state.main_process_first():
        yield


class _TrainingRun:
    """One training job, run by `run_training`.

    Args:
        method: name of the training method, as in `METHODS`; its regularizer is created.
        job: settings of the job.
        spec: spec of the base model; it is used in float32 and not compiled.
        device: device to train on; None for the default.
        out: the job's folder.
        on_progress: called with progress in [0, 1] and a message.
        auxiliary: spec of the encoder that hard negatives are mined with.
        holds_out: whether pairs of sources without a test are left out of the training.
    """

    def __init__(
        self,
        method: str,
        job: TrainingJob,
        spec: EncoderSpec,
        device: str | None,
        out: Path,
        on_progress: Progress,
        auxiliary: EncoderSpec,
        holds_out: bool = False,
    ) -> None:
        self.holds_out = holds_out
        self.method, self.job, self.device, self.out, self.on_progress = method, job, device, out, on_progress
        self.regularizer = create_regularizer(method, job.regularizer)
        self.base = replace(spec, dtype="float32", compile=False)
        self.spec = replace(self.base, max_length=job.training.max_length or spec.max_length)
        self.auxiliary = auxiliary

    def run_all(self) -> _TrainingOutcome:
        """Read sources, mine negatives, prepare the regularizer and train, unless done. A folder of another job raises.

        A folder with a trained model or another job raises.

        Raises:
            JobError: if the folder holds a trained model or another job.
        """
        if (self.out / MODEL).is_dir() and (self.out / SUMMARY).is_file():
            raise JobError(f"{self.out} already holds a trained model; remove it, or name another folder with --out")

        for warning in self.regularizer.list_source_warnings(len(self.job.sources)):
            log.warning("%s: %s", self.method, warning)

        self.on_progress(0.0, "reading the sources")
        sources = JobSources(self.job)
        with _let_first_process_go_first(self.device):
            # The digest is taken before mining: negatives that are mined again after a kill may differ by rounding.
            given = sources.builder.build().digest()
            self._mine_negatives(sources.builder)
            mixture, evaluator = sources.split()
            if self.holds_out:
                mixture = sources.hold_out_for_certificate(mixture)[0]
            encoder = Encoder(self.spec, self.device)
            self._record_or_check_job(encoder, mixture, given)
            self.regularizer.prepare(
                encoder, mixture, self.out / "targets", self.out / REFERENCE, self._report_offline_progress
            )
            warnings = [*mixture.notes, *self.regularizer.list_warnings(mixture, encoder.dimensions)]
            warnings += mixture.list_single_pair_warnings()
            warnings += list_prompt_warnings(encoder, [source.prompts for source in self.job.sources])
            warnings += _list_truncation_warnings(encoder, mixture)

            # Training loads the base model again: without this, two copies would be in memory.
            del encoder

        summary = self._train(mixture, evaluator)
        return _TrainingOutcome(mixture, self.regularizer, summary, warnings, self.out / MODEL)

    def _report_offline_progress(self, fraction: float, sentence: str) -> None:
        self.on_progress(OFFLINE_SHARE * fraction, sentence)

    def _mine_negatives(self, builder: MixtureBuilder) -> None:
        """Mine hard negatives for the builder's pairs, in place, if the job has settings for it.

        The auxiliary encoder is loaded for that.

        Raises:
            JobError, DataSetError: as `mine_sources`.
        """
        if self.job.negatives is None:
            return
        from lathe.training.finetuning.mining import mine_sources

        encoder = Encoder(replace(self.auxiliary, dtype="float32", compile=False), self.device)
        mine_sources(builder, self.job.negatives, encoder, self.out / REFERENCE, self._report_offline_progress)

    def _record_or_check_job(self, encoder: Encoder, mixture: Mixture, sources_digest: str) -> None:
        """Write the settings that the job depends on to job.json, or raise if an existing file has other settings.

        Raises:
            JobError: if the file describes another job, base model or data.
        """
        path = self.out / JOB
        settings = {
            "method": self.method,
            "mixture": mixture.digest_pairs(),
            "sources": sources_digest,
            "negatives": self.job.negatives and self.job.negatives.model_dump(),
            "regularizer": self.regularizer.settings and self.regularizer.settings.model_dump(),
            "training": self.job.training.model_dump(mode="json"),
            "evaluate": self.job.evaluate.model_dump(exclude={"folder"}) if self.job.evaluate else None,
        }
        if not path.is_file():
            replace_synced(path, orjson.dumps({"base": encoder.describe()} | settings, option=orjson.OPT_INDENT_2))
            return

        base = {"base.max_length": encoder.max_length, "base.fingerprint": encoder.fingerprint}
        changed = find_changed_setting(path, base | settings)
        if changed == "base.fingerprint":
            raise JobError(f"the base model changed since {self.out} was begun; name another folder with --out")
        if changed is not None:
            name = changed.removeprefix("base.")
            raise JobError(f"{self.out} was begun with another {name}; name another folder with --out")

    def _train(self, mixture: Mixture, evaluator: Evaluator | None) -> dict[str, Any]:
        """Train the base model, or resume, write model and training.json, delete checkpoints, and return the summary.

        LoRA's adapters are merged into the model, and also written if the job keeps them. The saved model has the
        maximum length of the base model, even if the training used a smaller one.
        """
        from lathe.training.finetuning.trainer import train

        # Without a regularizer nothing was prepared, so training takes the whole progress.
        share_before = OFFLINE_SHARE if self.regularizer.settings else 0.0
        model = load_model(self.base, self.device).float()
        base_length = model.max_seq_length

        if self.job.training.max_length is not None:
            model.max_seq_length = self.job.training.max_length

        trained = train(
            model,
            mixture,
            self.job.training,
            self.out / "training",
            lambda fraction, sentence: self.on_progress(share_before + (1 - share_before) * fraction, sentence),
            self.regularizer,
            evaluator=evaluator,
            export=self._export_adapter,
        )
        summary = asdict(trained) | {
            "method": self.method,
            "pairs": len(mixture),
            "negatives": sum(map(len, mixture.negatives)),
            "sources": mixture.names,
            "libraries": {
                name: version(name) for name in ("lathe-training", "torch", "transformers", "sentence-transformers")
            },
            "date": datetime.now(UTC).date().isoformat(),
        }
        if get_process_rank() == 0:
            # Training may truncate texts to fewer tokens than the saved model reads.
            if model.max_seq_length != base_length:
                model.max_seq_length = base_length
            save_model(model, self.out / MODEL)
            replace_synced(self.out / SUMMARY, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
            for checkpoint in (self.out / "training").glob("checkpoint-*"):
                shutil.rmtree(checkpoint, ignore_errors=True)

        return summary

    def _export_adapter(self, adapter: "LoraAdapter") -> None:
        """Write LoRA's adapters to the job's folder in the first process, if the job keeps them."""
        lora = self.job.training.lora
        if lora is not None and lora.keep_adapter and get_process_rank() == 0:
            adapter.export(self.out / ADAPTER, self.base.model)


def save_model(model: Any, path: Path) -> None:
    """Write a sentence-transformers model to a folder, replacing an existing folder.

    The model is written next to the folder and then renamed, so a killed run leaves no incomplete model.
    """
    partial = path.with_name(f".{path.name}")
    shutil.rmtree(partial, ignore_errors=True)
    model.save_pretrained(str(partial), create_model_card=False)
    shutil.rmtree(path, ignore_errors=True)
    partial.rename(path)
    sync_folder(path.parent)
