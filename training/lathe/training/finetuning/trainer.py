"""Training of a sentence-transformers model on a mixture, with the library's trainer."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from lathe.training.encoder.cutting import TextCutter
from lathe.training.encoder.devices import PROBES, has_bfloat16
from lathe.training.encoder.unpadding import try_unpadding
from lathe.training.errors import JobError
from lathe.training.finetuning.callbacks import (
    CHECKPOINT_PREFIX,
    CheckpointCallback,
    EvaluationCallback,
    LossCallback,
    TrainingLog,
    find_last_checkpoint,
    read_batch_size,
)
from lathe.training.finetuning.evaluators import Evaluator
from lathe.training.finetuning.job import TrainingSettings
from lathe.training.finetuning.lora import LoraAdapter
from lathe.training.finetuning.loss import CachedContrastiveLoss, ContrastiveLoss, NonFiniteLossError
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.regularizers.regularizer import Regularizer
from lathe.transforms.progress import Progress


def assign_text_ids(anchors: list[str], positives: list[str]) -> NDArray[np.int64]:
    """Assign ids to the anchor text and to the positive text of each pair, `(n, 2)`.

    Within a column, equal texts have equal ids.
    """
    numbers = [{text: number for number, text in enumerate(dict.fromkeys(texts))} for texts in (anchors, positives)]
    return np.array([[numbers[0][a], numbers[1][p]] for a, p in zip(anchors, positives, strict=True)], np.int64)


def assign_negative_ids(positives: list[str], negatives: Sequence[tuple[str, ...]]) -> NDArray[np.int64] | None:
    """Assign an id to the text of each hard negative of each pair, `(n, k)`, padded with −1. Without any, return None.

    A negative with the text of a positive has the id that `assign_text_ids` assigns to the positive.
    """
    max_negatives = max(map(len, negatives), default=0)
    if not max_negatives:
        return None

    texts = [*positives, *(text for texts_of_pair in negatives for text in texts_of_pair)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    ids = np.full((len(negatives), max_negatives), -1, np.int64)

    for row, texts_of_pair in zip(ids, negatives, strict=True):
        row[: len(texts_of_pair)] = [numbers[text] for text in texts_of_pair]

    return ids


NEGATIVES = "negative"
"""Name of the column that holds a list of hard negatives in each row."""


class _TripletCollator(SentenceTransformerDataCollator):
    """The library's data collator, extended by the column `negative`, which holds a list of texts in each row.

    The lists of all rows are concatenated, row after row, and tokenized like any other column. A batch in which no row
    has a negative lacks the column.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        rows = [{name: value for name, value in row.items() if name != NEGATIVES} for row in features]
        batch: dict[str, Any] = super().__call__(rows)
        if texts := [text for row in features for text in row.get(NEGATIVES) or ()]:
            batch |= {f"{NEGATIVES}_{name}": value for name, value in self.preprocess_fn(texts).items()}
        return batch


CHECKPOINTS_KEPT = 2
"""Maximum number of checkpoints on disk."""
LOG = "progress.jsonl"
"""File name of the training log."""


class _Trainer(SentenceTransformerTrainer):
    """The library's trainer, without pickled settings and model card, which would contain texts of the user.

    Under torchrun the library drops pairs that do not fill a step. Here the step is filled up with the first pairs.
    """

    data_collator_class = _TripletCollator
    adapter: LoraAdapter | None = None
    """Adapters that are trained and stored instead of the model's own weights; None to train and store all weights."""

    def get_train_dataloader(self) -> Any:
        """Return the library's data loader for the training pairs.

        Under torchrun, the loader gives every process the same number of batches of the same size.
        """
        loader: Any = super().get_train_dataloader()
        if _get_process_count() > 1:
            loader.batch_sampler.even_batches = True
        return loader

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Do nothing, so that no model card is written."""

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        folder = Path(str(output_dir or self.args.output_dir))
        if self.adapter is None:
            self.model.save_pretrained(str(folder), create_model_card=False)
        else:
            folder.mkdir(parents=True, exist_ok=True)
            self.adapter.save(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.adapter is None:
            super()._load_from_checkpoint(resume_from_checkpoint)
        else:
            self.adapter.load(Path(resume_from_checkpoint))


@dataclass(frozen=True)
class TrainingResult:
    """Result of a training.

    Attributes:
        steps: optimizer steps in all, including steps before a resume.
        seconds: time that this process trained.
        resumed_from: step that the training resumed from; 0 if it started from the beginning.
        kept: step whose model is kept: the best step if the model was evaluated during training, else the last.
        best: metric at that step; None if the model was not evaluated.
    """

    steps: int
    seconds: float
    resumed_from: int
    kept: int
    best: float | None = None


def train(
    model: Any,
    mixture: Mixture,
    settings: TrainingSettings,
    folder: Path,
    on_progress: Progress,
    regularizer: Regularizer,
    checkpoints: bool = True,
    evaluator: Evaluator | None = None,
    export: Callable[[LoraAdapter], None] | None = None,
) -> TrainingResult:
    """Train a model in place on a mixture, resuming from the last checkpoint in the folder. A loss of NaN raises.

    Checkpoints and the training log are written to the folder. With evaluation during training, the model of the best
    step is restored at the end. Adapters are exported and merged. The model is left in evaluation mode. A loss, weight
    or embedding that becomes NaN raises.

    Args:
        model: sentence-transformers model.
        mixture: pairs; batches mix all sources (Section 3.2 of the REZE paper), with and without hard negatives.
        settings: settings of the training.
        folder: folder for checkpoints and the training log; created if missing.
        on_progress: called with progress in [0, 1] and a message.
        regularizer: the prepared regularizer.
        checkpoints: whether to write checkpoints at intervals.
        evaluator: evaluation during training; None to keep the last step.
        export: called with the adapters before they are merged.

    Returns:
        The number of steps, the duration, the step whose model is kept, and its metric.

    Raises:
        JobError: if the processes cannot share the checkpoint's batch evenly, or adapters cannot be inserted.
        NonFiniteLossError: if the loss, a weight or an embedding becomes NaN or infinite; the last checkpoint stays.
    """
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = find_last_checkpoint(folder)
    if checkpoint is not None:
        # With the same number of pairs in a step, the order of pairs and the learning rates stay the same.
        settings = fit_batch_to_processes(settings, read_batch_size(checkpoint), _is_transformer(model))

    adapter = LoraAdapter(model, settings.lora, settings.seed) if settings.lora else None
    loss = _build_loss(model, mixture, settings, regularizer)
    batch = settings.batch_size * _get_process_count()
    log = TrainingLog(folder / LOG, dict)
    callbacks: list[TrainerCallback] = [LossCallback(log, loss.components, on_progress)]

    if evaluator is not None:
        encoding = partial(_encode, model, settings.batch_size)
        callbacks.append(EvaluationCallback(log, evaluator, encoding, on_progress))

    # After the evaluation, which may request a checkpoint at this step.
    callbacks.append(CheckpointCallback(loss.components, batch, lambda: _check_finite(model)))
    trainer = _Trainer(
        model=model,
        args=_build_arguments(model, settings, folder, len(mixture), checkpoints),
        train_dataset=build_dataset(mixture, model),
        loss=loss,
        callbacks=callbacks,
    )
    trainer.adapter = adapter

    # These callbacks print to the terminal. `LossCallback` reports the progress instead.
    for unwanted in (PrinterCallback, ProgressCallback):
        trainer.remove_callback(unwanted)

    resumed_from = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of deprecated calls between the libraries
            result = trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
            if trainer.state.best_global_step and trainer.state.best_global_step < trainer.state.global_step:
                trainer._load_from_checkpoint(str(folder / f"{CHECKPOINT_PREFIX}{trainer.state.best_global_step}"))
        _check_finite(model)
    except NonFiniteLossError as error:
        last_checkpoint = find_last_checkpoint(folder)
        remark = (
            f"the last good checkpoint is {last_checkpoint.name}" if last_checkpoint else "there is no checkpoint yet"
        )
        step = trainer.state.global_step
        raise NonFiniteLossError(f"{error} at step {step}; {remark}. A smaller learning rate often helps") from None

    if adapter is not None:
        if export is not None:
            export(adapter)
        adapter.merge()

    model.eval()
    state = trainer.state
    return TrainingResult(
        steps=state.global_step,
        seconds=float(result.metrics["train_runtime"]),
        resumed_from=resumed_from,
        kept=state.best_global_step or state.global_step,
        best=state.best_metric,
    )


def build_dataset(mixture: Mixture, model: Any) -> Dataset:
    """Build a `datasets.Dataset` of the pairs with columns anchor, positive, negative (if there are any) and label.

    The label is the index of the pair in the mixture. Long texts are cut to about what the model reads, unless the
    encoder is static.
    """

    def cut(texts: Sequence[str]) -> list[str]:
        return list(texts) if cutter is None else [cutter.cut(text).text for text in texts]

    cutter = TextCutter(model.tokenizer, model.max_seq_length or 512) if _is_transformer(model) else None
    columns: dict[str, Any] = {"anchor": cut(mixture.anchors), "positive": cut(mixture.positives)}

    if mixture.negatives:
        columns[NEGATIVES] = [cut(pair_negatives) for pair_negatives in mixture.negatives]

    return Dataset.from_dict(columns | {"label": np.arange(len(mixture))})


def _encode(model: Any, batch_size: int, texts: Sequence[str]) -> NDArray[np.float32]:
    """Encode texts with the model in training to unit vectors `(n, d)`, without its default prompt.

    The model encodes in evaluation mode, and returns to the mode it was in.
    """
    training = model.training
    vectors = model.eval().encode(
        list(texts), prompt="", batch_size=batch_size, normalize_embeddings=True, show_progress_bar=False
    )
    model.train(training)
    return np.asarray(vectors, np.float32)


def _get_process_count() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _is_transformer(model: Any) -> bool:
    """Return whether the model is a transformer, not a static encoder, which has no activations."""
    return hasattr(next(iter(model)), "auto_model")


def fit_batch_to_processes(settings: TrainingSettings, step_pairs: int, has_activations: bool) -> TrainingSettings:
    """Return settings whose batch size keeps the checkpoint's number of pairs per step. An uneven split raises.

    The pairs of a step are counted over all processes. The order of pairs, number of steps and learning rates then stay
    the same. If a process gets more pairs than `batch_size`, its gradients are cached, so it needs no more memory.

    Args:
        settings: settings of the job.
        step_pairs: pairs of a step, over all processes, when the checkpoint was written.
        has_activations: whether the model has activations, so that caching gradients saves memory.

    Raises:
        JobError: if these processes cannot share the batch evenly.
    """
    pairs, remainder = divmod(step_pairs, _get_process_count())
    if remainder or not pairs:
        raise JobError(
            f"the checkpoint's steps have {step_pairs} pairs, which {_get_process_count()} processes cannot share "
            f"evenly; start a number of processes that divides {step_pairs}"
        )

    mini_batch = settings.mini_batch_size or (
        settings.batch_size if has_activations and pairs > settings.batch_size else None
    )
    return settings.model_copy(update={"batch_size": pairs, "mini_batch_size": mini_batch})


@torch.no_grad()
def _check_finite(model: Any) -> None:
    """Raise `NonFiniteLossError` if a weight of the model, or its embedding of a test text, is NaN or infinite.

    Either can be finite without the other.
    """
    if not all(torch.isfinite(weights).all() for weights in model.parameters()):
        raise NonFiniteLossError("a weight became NaN or infinite")

    training = model.training
    features = model.preprocess(PROBES[:1])
    padded = {name: v.to(model.device) if isinstance(v, torch.Tensor) else v for name, v in features.items()}
    embedding = model.eval()(padded)["sentence_embedding"]
    model.train(training)
    if not torch.isfinite(embedding).all():
        raise NonFiniteLossError("an embedding became NaN or infinite")


def _build_loss(model: Any, mixture: Mixture, settings: TrainingSettings, regularizer: Regularizer) -> ContrastiveLoss:
    """Build the contrastive loss, with gradients cached for mini-batches. May switch a CPU model to unpadded input.

    Gradients are cached if `mini_batch_size` is smaller than `batch_size`; a static encoder then raises. Otherwise, on
    a CPU, the model is switched, in place, to take texts without padding if that gives the same vectors. With
    `mask_identical`, in-batch negatives equal to a text of the pair are excluded.

    Raises:
        JobError: if the gradients of a static encoder would be cached.
    """
    text_ids = assign_text_ids(mixture.anchors, mixture.positives) if settings.mask_identical else None
    # Ids are shared with the positives, so that a hard negative equal to a positive is recognized.
    negative_ids = assign_negative_ids(mixture.positives, mixture.negatives)
    options: dict[str, Any] = {"regularizer": regularizer, "text_ids": text_ids, "negative_ids": negative_ids}
    if settings.mini_batch_size is not None and settings.mini_batch_size < settings.batch_size:
        if not _is_transformer(model):
            raise JobError("mini_batch_size saves no memory with a static encoder, which has no activations")
        return CachedContrastiveLoss(settings.mini_batch_size, model, settings.temperature, **options)

    position, _ = try_unpadding(model, PROBES) or (None, "")
    return ContrastiveLoss(model, settings.temperature, first_position=position, **options)


def _build_arguments(
    model: Any, settings: TrainingSettings, folder: Path, pairs: int, checkpoints: bool
) -> SentenceTransformerTrainingArguments:
    """Build the arguments of sentence-transformers' trainer from the settings, with AdamW as the optimizer.

    Precision "auto" is bfloat16 if the model's device supports it, else float32. The number of warmup steps follows
    from the number of pairs. Files go to `folder`.
    """
    device = str(model.device).partition(":")[0]
    bfloat16 = has_bfloat16(device) if settings.precision == "auto" else settings.precision == "bfloat16"
    # Rounded up: the last batch of an epoch may be smaller.
    steps = -(-pairs // (settings.batch_size * _get_process_count())) * settings.epochs
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder),
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.schedule,
        warmup_steps=round(settings.warmup_ratio * steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch_fused" if device in ("cpu", "cuda") else "adamw_torch",
        bf16=bfloat16,
        use_cpu=device == "cpu",
        seed=settings.seed,
        save_strategy="steps" if checkpoints else "no",
        save_steps=settings.checkpoint_steps,
        save_total_limit=CHECKPOINTS_KEPT,
        logging_steps=settings.log_steps,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=device == "cuda",
    )
    arguments.dataloader_drop_last = False  # which the library sets under torchrun

    return arguments
