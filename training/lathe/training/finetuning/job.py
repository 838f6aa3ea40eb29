"""Settings of a training job, which a user writes as YAML: sources, the regularizer and the training.

    encoder: all-MiniLM-L6-v2
    cap: 256
    sources:
      - folder: data/finance                 # every data set below it
        exclude: [fnxl_xbrl_tags]
      - jsonl: questions.jsonl
        anchor: question
        positive: answer
        prompts: {anchor: "query: ", positive: "passage: "}
      - hub: FinanceMTEB/FinSTS
        task: sts
        columns: {sentence1: a, sentence2: b}
    target: {folder: data/finance/fiqa_qa}   # not trained on; sources that share its test texts are refused
    regularizer: {loss_weight: 1.0, strength: 0.7}
    training: {learning_rate: 1e-4, batch_size: 8}

The optional settings are in extras.py: `negatives`, `evaluate`, and `lora` under `training`. Paths
are relative to the YAML file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from lathe.training.datasets.layouts import TRAINABLE
from lathe.training.datasets.pairs import Labels, PairSettings
from lathe.training.errors import JobError
from lathe.training.finetuning.extras import EvaluatorSettings, LoraSettings, NegativeSettings
from lathe.training.finetuning.regularizers.regularizer import RegularizerSettings
from lathe.training.settings import MAX_ENTRIES, Count, Fraction, NotNegative, Positive, Prompts, Seed, StrictSettings
from lathe.transforms.files import expand_home
from lathe.transforms.suggestions import find_similar

Overlap = Literal["refuse", "drop", "allow"]
Precision = Literal["auto", "float32", "bfloat16"]
if TYPE_CHECKING:
    Task = str
else:
    Task = Literal[TRAINABLE]


class _LocationSettings(StrictSettings):
    """Settings of where a source is read from: a folder, a file of JSON lines, rows in the job, or a hub data set.

    Attributes:
        folder: a data set in one of our layouts, or a folder of such data sets.
        jsonl: a file with an anchor and a positive on each line.
        rows: lines like those of `jsonl`, as objects in the job.
        hub: id of a data set of the hub.
        name: name in tables; None for the name of the folder, file or hub data set.
        task: task, which decides the layout of the rows; None to read it from META.json. Rows of JSON lines are pairs
            if the task is None or `retrieval`, else as in the task's folders.
        columns: column names of a hub data set by our field names.
        revision: revision of a hub data set.
        exclude: data sets of a folder to leave out.
    """

    folder: Path | None = None
    jsonl: Path | None = None
    rows: tuple[dict[str, Any], ...] | None = None
    hub: str | None = None
    name: str | None = None
    task: Task | None = None
    columns: dict[str, str] = {}
    revision: str | None = None
    exclude: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_one_place(self) -> Self:
        if self.columns and self.hub is None:
            raise ValueError("columns may be set only for a hub data set; for a file set anchor and positive")

        named = [name for name in ("folder", "jsonl", "rows", "hub") if getattr(self, name) is not None]
        if len(named) != 1:
            raise ValueError(f"set exactly one of folder, jsonl, rows and hub; got {', '.join(named) or 'none'}")
        if self.hub is not None and self.task is None:
            raise ValueError(f"a hub data set needs task: one of {', '.join(TRAINABLE)}")

        return self


class SourceSettings(PairSettings, _LocationSettings):
    """Settings of one source of pairs: its location, how its rows become pairs, and how its pairs are used.

    Attributes:
        cap: maximum number of pairs, sampled with the job's seed.
        prompts: prompts put before the texts.
        corpus: source of texts to mine negatives from, such as `filings.jsonl`; None for the documents of the data set.
    """

    cap: Count | None = None
    prompts: Prompts = Prompts()
    corpus: Path | None = None


class TargetSettings(StrictSettings):
    """Settings of the target: a data set folder that the model will be tested on and must not be trained on.

    Attributes:
        folder: folder of the data set.
        name: name in tables; None for the name of the folder.
        task: task, which decides the layout; None to read it from META.json.
        prompts: prompts put before queries (or inputs) and before documents (or labels), in evaluation.
        labels: text of each label; takes precedence over labels.json.
    """

    folder: Path
    name: str | None = None
    task: Task | None = None
    prompts: Prompts = Prompts()
    labels: Labels = {}


class TrainingSettings(StrictSettings):
    """Settings of the training, with the REZE paper's defaults (its Appendix B).

    Attributes:
        learning_rate: highest learning rate, at the end of the warmup.
        batch_size: pairs for each step and process; the positives of all processes are in-batch negatives of one
            another.
        mini_batch_size: pairs in memory at once; if smaller than `batch_size`, gradients are cached (GradCache).
        epochs: passes over the mixture.
        temperature: τ of Eq. 9.
        warmup_ratio: share of the steps over which the learning rate grows.
        schedule: how the learning rate falls to 0 after the warmup: as a cosine or linearly, as for Fin-E5 (FinMTEB,
            Appendix B).
        weight_decay: weight decay of AdamW.
        max_grad_norm: maximum gradient norm; longer gradients are clipped.
        precision: dtype of the forward pass; `auto` is bfloat16 if the hardware supports it.
        max_length: maximum number of tokens of a text in training; the trained model keeps the maximum of the base
            model.
        mask_identical: whether to exclude in-batch negatives whose anchor or positive text equals the pair's.
        checkpoint_steps: steps between checkpoints.
        log_steps: steps between lines of the training log.
        seed: seed of the order of pairs and of dropout.
        lora: settings of low-rank adapters, for encoders too large to train all weights; None to train all weights.
    """

    learning_rate: Positive = 1e-4
    batch_size: Annotated[int, Field(ge=2)] = 8
    mini_batch_size: Count | None = None
    epochs: Positive = 1.0
    temperature: Positive = 0.05
    warmup_ratio: Fraction = 0.0
    schedule: Literal["cosine", "linear"] = "cosine"
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0
    precision: Precision = "auto"
    max_length: Count | None = None
    mask_identical: bool = False
    checkpoint_steps: Count = 200
    log_steps: Count = 10
    seed: Seed = 0
    lora: LoraSettings | None = None


class DataSettings(StrictSettings):
    """Settings shared by jobs and experiments: encoder, sources, regularizer and training.

    Attributes:
        encoder: name as in `lathe encoders`, a folder, or a hub id; None for the default encoder.
        sources: sources of pairs, at least one.
        cap: maximum number of pairs of a source that sets no `cap` itself.
        overlap: what to do with pairs that share a text with the target's test: refuse the job, drop the pairs, or
            allow them.
        leave_out: texts that are treated like texts of the target's test.
        seed: seed of the sample of pairs of a source over its cap.
        regularizer: settings of the regularizer.
        training: settings of the training.
    """

    encoder: str | None = None
    sources: Annotated[tuple[SourceSettings, ...], Field(min_length=1, max_length=MAX_ENTRIES)]
    cap: Count | None = None
    overlap: Overlap = "refuse"
    leave_out: tuple[str, ...] = ()
    seed: Seed = 0
    regularizer: RegularizerSettings = RegularizerSettings()
    training: TrainingSettings = TrainingSettings()


class TrainingJob(DataSettings):
    """Settings of one training job.

    Attributes:
        target: the data set that must not be trained on; None for none.
        negatives: settings of hard-negative mining; None to mine none.
        evaluate: settings of the evaluation during training; None for none.
    """

    target: TargetSettings | None = None
    negatives: NegativeSettings | None = None
    evaluate: EvaluatorSettings | None = None

    @model_validator(mode="after")
    def _check_mining_settings(self) -> Self:
        if self.negatives is None and any(source.negatives == "mined" for source in self.sources):
            raise ValueError("a source asks for mined negatives; add settings such as negatives: {num_negatives: 3}")
        return self


Kind = TypeVar("Kind", bound=StrictSettings)


def read_settings(path: Path, kind: type[Kind]) -> Kind:
    """Read a YAML file into a validated settings object of class `kind`. An unknown key or a wrong value raises.

    Relative paths in the file become absolute, relative to the file's folder.

    Raises:
        JobError: if the file cannot be read, is not YAML, or has an unknown key or a wrong value; the message says
            where.
    """
    try:
        settings = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise JobError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error

    if not isinstance(settings, dict):
        raise JobError(f"{path.name} must hold settings by name, such as sources, not {type(settings).__name__}")

    return parse_settings(_make_paths_absolute(settings, path.resolve().parent), kind, path.name)


def parse_settings(settings: dict[str, Any], kind: type[Kind], origin: str) -> Kind:
    """Validate settings from YAML or JSON as an object of class `kind`.

    Args:
        settings: the settings, whose paths stay as they are.
        kind: class of the settings.
        origin: name of the file or field that holds the settings, for messages.

    Raises:
        JobError: for an unknown key or a wrong value; the message says where, and suggests a similar key.
    """
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        raise JobError(f"{origin}: {_format_validation_error(error, kind)}") from None


def _make_paths_absolute(given: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a copy of the settings in which relative paths are absolute, counted from `folder`.

    `folder` is the folder of the YAML file. Paths are `folder`, `jsonl` and `corpus` of each section. Names of encoders
    become paths if such a path exists in `folder`, else they stay names.
    """
    settings = {
        name: [_make_absolute(item, folder) for item in value]
        if isinstance(value, list)
        else _make_absolute(value, folder)
        for name, value in given.items()
    }
    for section, names in _NAMES_OR_PATHS.items():
        values = settings.get(section) if section else settings
        if isinstance(values, dict):
            given = {name: values[name] for name in names if isinstance(values.get(name), str)}
            existing = {name: str(folder / path) for name, path in given.items() if (folder / path).exists()}
            values |= existing

    return settings


_NAMES_OR_PATHS = {"": ("encoder",), "negatives": ("model",)}
"""Settings that hold a name, or a path if it exists, by the section of the job ("" for the top level)."""
_PATHS = ("folder", "jsonl", "corpus")
"""Settings that always hold a path."""


def _make_absolute(section: Any, base: Path) -> Any:
    """Return a copy of one section of the settings in which the paths `folder`, `jsonl` and `corpus` are absolute.

    Relative paths count from the folder `base`, and `~` is expanded. A value that is not a dict is returned unchanged.
    """
    if not isinstance(section, dict):
        return section
    paths = {name: section[name] for name in _PATHS if isinstance(section.get(name), str)}
    # Joining with an absolute path gives the absolute path.
    return section | {name: str(base / expand_home(path)) for name, path in paths.items()}


def _format_validation_error(error: ValidationError, kind: type[BaseModel]) -> str:
    """Format the first error that pydantic found as a message.

    The message says which setting is wrong, what is wrong with the value, and what is allowed.
    """
    first = error.errors()[0]
    location = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = _list_fields_at(kind, first["loc"][:-1])
        similar = find_similar(str(first["loc"][-1]), known)
        suggestion = f"did you mean {similar}? " if similar else ""
        return f"unknown setting {location}; {suggestion}there are {', '.join(known)}"
    if first["type"] == "missing":
        return f"{location} is missing"

    message = first["msg"].removeprefix("Value error, ")
    return f"{location or 'the job'}: {message}, got {first['input']!r:.60}" if location else message


def _list_fields_at(kind: type[BaseModel], location: tuple[int | str, ...]) -> list[str]:
    """Return the names of the fields of the settings class at the location of a pydantic error within `kind`."""
    for part in location:
        if isinstance(part, str) and part in kind.model_fields:
            annotation = kind.model_fields[part].annotation
            kind = next(model for model in _find_nested_models(annotation))
    return list(kind.model_fields)


def _find_nested_models(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models in a type annotation, such as a union or a tuple of models."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _find_nested_models(part)]
