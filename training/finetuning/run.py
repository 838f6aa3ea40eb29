"""A training job from its settings to a model that can be served.

OUT/
├── job.json         what was asked, and of which base model
├── sources.csv      what was kept of each source, and why not more
├── negatives/       what was mined                                 mined.py
├── reference/       vectors of single texts by the base model      reference.py
├── targets/         what the regulariser pulls towards             targets.py
├── report.html      the page                                       report.py, parts.py
├── training/        checkpoints, and progress.jsonl                trainer.py
├── training.json    how it went
├── model/           a plain sentence-transformers model
├── adapter/         what LoRA learned, where the job keeps it      lora.py
└── evaluation/      the model against its base, comparison.json    afterwards.py
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from training.encoder.encoder import Encoder, load_model
from training.encoder.spec import DEFAULT_ENCODER, EncoderSpec
from training.errors import JobError
from training.evaluation.suites import Suite
from training.finetuning.afterwards import COMPARISON, Compared, compare_models, open_suites
from training.finetuning.development import Development
from training.finetuning.job import Job, RegularizerSettings, distillation
from training.finetuning.mine_run import mined
from training.finetuning.mining_statistics import Statistics
from training.finetuning.mixture import Mixture
from training.finetuning.page import Page
from training.finetuning.reading import Sources
from training.finetuning.reference import unprompted
from training.finetuning.targets import Targets, prepare_targets
from training.finetuning.truncation import cut_texts
from training.workspace import exclusive
from transforms.files import replace_synced, sync_folder
from transforms.progress import Progress

if TYPE_CHECKING:
    from training.finetuning.lora import Adapter

Method = Literal["reze", "pft", "ft", "distill"]
REGULARIZED: tuple[Method, ...] = ("reze", "distill")
OFFLINE_SHARE = 0.2
"""Of the work, for the progress: the reference costs one forward pass where training costs three."""
OFFLINE_HOURS = 24
"""How long the other processes of torchrun wait for the first one's reference."""
MODEL, JOB, SUMMARY, ADAPTER = "model", "job.json", "training.json", "adapter"


@dataclass(frozen=True)
class Outcome:
    """A finished job.

    Attributes:
        mixture: the pairs trained on.
        targets: where there are some.
        summary: how training went.
        warnings: what to know of it.
        model: its folder.
        mined: what was mined of each source; empty where nothing was.
        compared: the model against its base, by suite; empty where that was not asked for.
    """

    mixture: Mixture
    targets: Targets | None
    summary: dict[str, Any]
    warnings: list[str]
    model: Path
    mined: dict[str, Statistics]
    compared: dict[str, Compared]


def settings_of(method: Method, given: RegularizerSettings) -> RegularizerSettings:
    """The regulariser of a method."""
    return distillation(given) if method == "distill" else given


def run(
    method: Method,
    job: Job,
    spec: EncoderSpec,
    device: str | None,
    out: Path,
    on_progress: Progress,
    auxiliary: EncoderSpec = DEFAULT_ENCODER,
) -> Outcome:
    """Do a job; one that was stopped is taken up again where it was.

    Args:
        method: `reze`, its control `distill`, plain `pft`, or `ft`, the same on one target's own rows.
        job: the settings.
        spec: the base model.
        device: to train on; None for the best there is.
        out: the folder for everything.
        on_progress: told a fraction and a sentence.
        auxiliary: what hard negatives are mined with.

    Raises:
        JobError: if the job cannot be done as described, or the folder holds another one.
    """
    only = Run(method, job, spec, device, out, on_progress, auxiliary)
    if process_rank() > 0:  # of torchrun; the first one holds the folder
        return only.finish()
    with exclusive(out, JobError(f"another job is writing to {out}; name another folder with --out")):
        return only.finish()


def process_rank() -> int:
    """Which process of torchrun this is; 0 alone."""
    return int(os.environ.get("RANK", "0"))


@contextmanager
def first_process_first(device: str | None) -> Iterator[None]:
    """Under torchrun, let the first process do the work and the others find it done."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    from accelerate import PartialState

    state = PartialState(cpu=device == "cpu", timeout=timedelta(hours=OFFLINE_HOURS))
    with state.main_process_first():
        yield


class Run:
    """One job; see `run`."""

    def __init__(
        self,
        method: Method,
        job: Job,
        spec: EncoderSpec,
        device: str | None,
        out: Path,
        on_progress: Progress,
        auxiliary: EncoderSpec,
    ) -> None:
        self.method, self.job, self.device, self.out, self.on_progress = method, job, device, out, on_progress
        self.regularizer = settings_of(method, job.regularizer)
        self.regularized = method in REGULARIZED
        self.base = replace(spec, dtype="float32", compile=False)
        self.spec = replace(self.base, max_length=job.training.max_length or spec.max_length)
        self.auxiliary = auxiliary

    def finish(self) -> Outcome:
        """Everything, in order."""
        trained = (self.out / MODEL).is_dir() and (self.out / SUMMARY).is_file()
        if trained and (self.job.evaluate_after is None or (self.out / COMPARISON).is_file()):
            raise JobError(f"{self.out} holds a trained model already; name another folder with --out, or remove it")
        self.on_progress(0.0, "reading the sources")
        sources = Sources(self.job)
        suites = open_suites(self.job.evaluate_after) if self.job.evaluate_after else {}
        with first_process_first(self.device):
            found = mined(sources.mixing, self.job, self.auxiliary, self.device, self.out, self.offline_progress)
            mixture, development = sources.split()
            encoder = Encoder(self.spec, self.device)
            self.require_same_job(encoder, mixture)
            targets = self.targets(encoder, mixture) if self.regularized else None
            shrinks = self.regularized and self.regularizer.target == "debiased"
            warnings = mixture.warnings(encoder.dimensions, shrinks)
            warnings += unprompted(encoder, [source.prompts for source in self.job.sources])
            warnings += cut_texts(encoder, mixture)
            page = Page(self.out, mixture, targets, self.regularizer if self.regularized else None, warnings, found)
            if process_rank() == 0:
                page.write()
            del encoder
        if trained:
            summary = orjson.loads((self.out / SUMMARY).read_bytes())
        else:
            summary = self.train(mixture, targets, development)
        compared = self.compare(mixture, suites) if process_rank() == 0 else {}
        if process_rank() == 0:
            page.write(summary["kept"], compared)
        return Outcome(mixture, targets, summary, warnings, self.out / MODEL, found, compared)

    def compare(self, mixture: Mixture, suites: dict[str, Suite]) -> dict[str, Compared]:
        """The model against its base, where the job names suites."""
        if self.job.evaluate_after is None:
            return {}
        texts = [*mixture.anchors, *mixture.positives]
        limit, model = self.job.evaluate_after.limit, self.out / MODEL
        return compare_models(suites, limit, self.base, model, texts, self.device, self.out, self.on_progress)

    def targets(self, encoder: Encoder, mixture: Mixture) -> Targets:
        """What the regulariser pulls towards."""
        return prepare_targets(
            encoder,
            mixture,
            self.regularizer,
            self.out / "targets",
            self.out / "reference",
            self.offline_progress,
        )

    def offline_progress(self, fraction: float, sentence: str) -> None:
        """Progress of what comes before the training."""
        self.on_progress(OFFLINE_SHARE * fraction, sentence)

    def require_same_job(self, encoder: Encoder, mixture: Mixture) -> None:
        """Raise `JobError` if the folder was begun with another job, model or data."""
        path = self.out / JOB
        described = {
            "method": self.method,
            "base": encoder.describe(),
            "mixture": mixture.digest(),
            "regularizer": self.regularizer.model_dump() if self.regularized else None,
            "training": self.job.training.model_dump(mode="json"),
            "evaluate": self.job.evaluate.model_dump(exclude={"folder"}) if self.job.evaluate else None,
        }
        if not path.is_file():
            replace_synced(path, orjson.dumps(described, option=orjson.OPT_INDENT_2))
            return
        found = orjson.loads(path.read_bytes())
        if found["base"]["max_length"] != encoder.max_length:
            raise JobError(f"{self.out} was begun with another max_length; name another folder with --out")
        if found["base"]["fingerprint"] != encoder.fingerprint:
            raise JobError(f"the base model changed since {self.out} was begun; name another folder with --out")
        for name in ("method", "mixture", "regularizer", "training", "evaluate"):
            if found[name] != described[name]:
                raise JobError(f"{self.out} was begun with another {name}; name another folder with --out")

    def train(self, mixture: Mixture, targets: Targets | None, development: Development | None) -> dict[str, Any]:
        """Train, and save the model with the length that the base model reads."""
        from training.finetuning.trainer import train

        share = OFFLINE_SHARE if self.regularized else 0.0
        model = load_model(self.base, self.device).float()
        length = model.max_seq_length
        if self.job.training.max_length is not None:
            model.max_seq_length = self.job.training.max_length
        trained = train(
            model,
            mixture,
            self.job.training,
            self.out / "training",
            lambda fraction, sentence: self.on_progress(share + (1 - share) * fraction, sentence),
            targets,
            self.regularizer.loss_weight if targets else 0.0,
            development=development,
            export=self.export,
        )
        summary = asdict(trained) | {
            "method": self.method,
            "pairs": len(mixture),
            "negatives": sum(map(len, mixture.negatives)),
            "sources": mixture.names,
            "libraries": {name: version(name) for name in ("lathe", "torch", "transformers", "sentence-transformers")},
            "date": datetime.now(UTC).date().isoformat(),
        }
        if process_rank() == 0:
            if model.max_seq_length != length:
                model.max_seq_length = length
            save_model(model, self.out / MODEL)
            replace_synced(self.out / SUMMARY, orjson.dumps(summary, option=orjson.OPT_INDENT_2))
            for checkpoint in (self.out / "training").glob("checkpoint-*"):
                shutil.rmtree(checkpoint, ignore_errors=True)
        return summary

    def export(self, adapter: "Adapter") -> None:
        """Write the adapters beside the model where the job keeps them."""
        lora = self.job.training.lora
        if lora is not None and lora.keep_adapter and process_rank() == 0:
            adapter.export(self.out / ADAPTER, self.base.model)


def save_model(model: Any, path: Path) -> None:
    """Write a model whole or not at all."""
    written = path.with_name(f".{path.name}")
    shutil.rmtree(written, ignore_errors=True)
    model.save_pretrained(str(written), create_model_card=False)
    shutil.rmtree(path, ignore_errors=True)
    written.rename(path)
    sync_folder(path.parent)
