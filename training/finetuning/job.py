"""A training job as a user writes it: YAML with sources, the regulariser and the training's settings.

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
    target: {folder: data/finance/fiqa_qa}   # left out; sources that share its test texts are refused
    regularizer: {loss_weight: 1.0, strength: 0.7}
    training: {learning_rate: 1e-4, batch_size: 8}

What more a job may say is in extras.py: `negatives`, `evaluate`, `evaluate_after`, and `lora` of the training.
Paths are relative to the file.
"""

from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

from training.errors import JobError
from training.finetuning.extras import DevelopmentSettings, LoraSettings, NegativeSettings, SuiteSettings
from training.finetuning.values import Count, Fraction, NotNegative, Positive, Prompts, Seed, Settings

Overlap = Literal["refuse", "drop", "allow"]
Precision = Literal["auto", "float32", "bfloat16"]
Task = Literal[
    "retrieval",
    "reranking",
    "classification",
    "pair_classification",
    "summarization",
    "clustering",
    "sts",
    "pairs",
]
WhichNegatives = Literal["given", "mined", "none"]


def by_text(value: Any) -> Any:
    """Labels as texts, which YAML takes for numbers."""
    return {str(label): text for label, text in value.items()} if isinstance(value, dict) else value


Labels = Annotated[dict[str, str], BeforeValidator(by_text)]


class SourceSettings(Settings):
    """Where pairs come from: a folder, a file of JSON lines, or a data set of the hub.

    Attributes:
        folder: a data set in one of our layouts, or a folder of such.
        jsonl: a file with an anchor and a positive on each line.
        hub: a data set of the hub, by its path.
        name: in tables; the folder's or file's own unless given.
        task: the layout; read from META.json where there is one. Rows of JSON lines are pairs without one, or with
            `retrieval`, and those of any other task as in its folders.
        split: the training split where there is one, else the one there is.
        cap: pairs taken at most, drawn with the job's seed.
        prompts: put before the texts.
        anchor: the field of a file of JSON lines.
        positive: likewise.
        columns: a hub data set's own names, by ours.
        revision: of a hub data set.
        labels: the text of each label, in place of labels.json.
        min_score: of an STS pair to count as positive; four fifths up the scale unless given.
        texts_per_cluster: that make one anchor.
        exclude: data sets of a folder that are left out.
        negatives: its hard negatives: those `given` by its rows, those `mined` as the job's `negatives` say, or `none`.
            Unless said, those of pairs that give some, else mined where the job mines.
        negative: the field of a file of JSON lines that gives them, a text or several.
        corpus: what is mined, in place of its own documents: a source of texts, such as `filings.jsonl`.
    """

    folder: Path | None = None
    jsonl: Path | None = None
    hub: str | None = None
    name: str | None = None
    task: Task | None = None
    split: str | None = None
    cap: Count | None = None
    prompts: Prompts = Prompts()
    anchor: str = "anchor"
    positive: str = "positive"
    columns: dict[str, str] = {}
    revision: str | None = None
    labels: Labels = {}
    min_score: float | None = None
    texts_per_cluster: Count = 4
    exclude: tuple[str, ...] = ()
    negatives: WhichNegatives | None = None
    negative: str = "negative"
    corpus: Path | None = None

    @model_validator(mode="after")
    def one_place(self) -> Self:
        """Refuse none and several places, and a hub data set without a task."""
        if self.columns and self.hub is None:
            raise ValueError("columns are those of a hub data set; a file names its anchor and positive")
        given = [name for name in ("folder", "jsonl", "hub") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"name a folder, a jsonl file or a hub data set, one of them; got {given or 'none'}")
        if self.hub is not None and self.task is None:
            raise ValueError("a hub data set needs its task")
        return self


class TargetSettings(Settings):
    """The data set that is left out of pre-finetuning: a folder in one of our layouts.

    Attributes:
        folder: of the data set.
        name: in tables; the folder's own unless given.
        task: the layout; read from META.json where there is one.
        prompts: put before its queries or inputs, and its documents or labels, where it is measured.
        labels: the text of each label, in place of labels.json.
    """

    folder: Path
    name: str | None = None
    task: Task | None = None
    prompts: Prompts = Prompts()
    labels: Labels = {}

    def as_source(self) -> SourceSettings:
        """What says how its rows become pairs."""
        return SourceSettings(folder=self.folder, task=self.task, prompts=self.prompts, labels=self.labels)


class RegularizerSettings(Settings):
    """REZE's regulariser; the defaults are the paper's.

    Attributes:
        loss_weight: α of Eq. 10.
        target: `debiased` is REZE; `reference` keeps the relations as they were, which is plain distillation.
        strength: η of Eq. 6, how much of the way a source's mean is pulled to the band around the centre.
        scale: γ of Eqs. 4 and 5, of the threshold and the band.
        variance_ratio: ρ of Eq. 3, the variance that active dimensions explain.
        center: of the source means; `median` averages the two middle ones of an even count, `mean` is the ablation.
        denominator: of Eq. 6. `literal` is as printed, |μ| + ε, and depends on the sign an eigenvector happens to
            have; `signed` is sgn(μ)(|μ| + ε), which does not.
        operation: `scale` multiplies a source's coordinates, as the paper does; `translate` moves them by what its
            mean would move, and leaves the spread within the source.
        contrast: what InfoNCE compares. `debiased` takes from each embedding how far the reference's mean of its
            source lies from the centre, in the directions that separate the sources: negatives of other sources are
            then not told by their source alone. An idea of ours, not the paper's.
        clip: keep factors in [0, 1].
        epsilon_denominator: ε of Eq. 6.
        epsilon_threshold: ε of Eq. 4, to be small beside the dispersions (1e-6 for unit vectors).
    """

    loss_weight: NotNegative = 1.0
    target: Literal["debiased", "reference"] = "debiased"
    strength: NotNegative = 0.7
    scale: NotNegative = 1.0
    variance_ratio: Annotated[float, Field(gt=0, le=1)] = 0.99
    center: Literal["median", "mean"] = "median"
    denominator: Literal["signed", "literal"] = "signed"
    operation: Literal["scale", "translate"] = "scale"
    contrast: Literal["plain", "debiased"] = "plain"
    clip: bool = True
    epsilon_denominator: NotNegative = 1e-8
    epsilon_threshold: NotNegative = 1e-8


def distillation(settings: RegularizerSettings) -> RegularizerSettings:
    """The same without anything of REZE's: relations stay as they were, and are compared as they are."""
    return settings.model_copy(update={"target": "reference", "contrast": "plain"})


class TrainingSettings(Settings):
    """How the model is trained; the defaults are those of the REZE paper's Appendix B.

    Attributes:
        learning_rate: at the start of the cosine schedule.
        batch_size: pairs a step and process; the positives of all processes are one another's negatives.
        mini_batch_size: pairs in memory at once; smaller than `batch_size` caches gradients (GradCache).
        epochs: over the mixture.
        temperature: τ of Eq. 9.
        warmup_ratio: of the steps, over which the learning rate grows.
        weight_decay: of AdamW.
        max_grad_norm: longer gradients are shortened to it.
        precision: of the forward pass; `auto` is bfloat16 where the hardware has it.
        max_length: tokens read of a text in training; the trained model keeps its own.
        mask_identical: leave out negatives whose positive or anchor is the pair's own text.
        checkpoint_steps: between checkpoints.
        log_steps: between lines of progress.
        seed: of the order of pairs and of dropout.
        lora: trains a few small matrices in place of all weights; for encoders too large for that.
    """

    learning_rate: Positive = 1e-4
    batch_size: Annotated[int, Field(ge=2)] = 8
    mini_batch_size: Count | None = None
    epochs: Positive = 1.0
    temperature: Positive = 0.05
    warmup_ratio: Fraction = 0.0
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0
    precision: Precision = "auto"
    max_length: Count | None = None
    mask_identical: bool = False
    checkpoint_steps: Count = 200
    log_steps: Count = 10
    seed: Seed = 0
    lora: LoraSettings | None = None


class DataSettings(Settings):
    """What jobs and experiments share: an encoder and sources of pairs.

    Attributes:
        encoder: as `lathe encoders` calls it, a folder, or a hub id; the default encoder unless given.
        sources: at least one.
        cap: pairs taken of a source at most, where it says nothing itself.
        overlap: what becomes of pairs that share a text with the target's test set.
        seed: of the drawing of capped sources.
    """

    encoder: str | None = None
    sources: Annotated[tuple[SourceSettings, ...], Field(min_length=1)]
    cap: Count | None = None
    overlap: Overlap = "refuse"
    seed: Seed = 0
    regularizer: RegularizerSettings = RegularizerSettings()
    training: TrainingSettings = TrainingSettings()


class Job(DataSettings):
    """One training.

    Attributes:
        target: the data set it must not see.
        negatives: how hard negatives are mined; none are without it.
        evaluate: what the model is measured on while it is trained.
        evaluate_after: suites on which it is compared with its base.
    """

    target: TargetSettings | None = None
    negatives: NegativeSettings | None = None
    evaluate: DevelopmentSettings | None = None
    evaluate_after: SuiteSettings | None = None

    @model_validator(mode="after")
    def can_mine(self) -> Self:
        """Refuse a source that asks for mined negatives where nothing says how to mine them."""
        if self.negatives is None and any(source.negatives == "mined" for source in self.sources):
            raise ValueError("a source asks for mined negatives; say how with negatives: {num_negatives: 3}")
        return self


Kind = TypeVar("Kind", bound=Settings)


def read_settings(path: Path, kind: type[Kind]) -> Kind:
    """The settings in a YAML file, its paths made absolute.

    Raises:
        JobError: if it cannot be read, is no YAML, or has an unknown key or a wrong value, with its place.
    """
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise JobError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise JobError(f"{path.name} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(written, dict):
        raise JobError(f"{path.name} must hold settings by name, such as sources, not {type(written).__name__}")
    try:
        return kind.model_validate(with_absolute_paths(written, path.resolve().parent))
    except ValidationError as error:
        raise JobError(f"{path.name}: {described(error, kind)}") from None


def with_absolute_paths(written: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The settings with the folders and files they name taken from where the YAML file lies.

    So are encoders and suites that lie there; others are known by name.
    """
    found = {
        name: [placed(item, beside) for item in value] if isinstance(value, list) else placed(value, beside)
        for name, value in written.items()
    }
    for part, names in NAMED_OR_PLACED.items():
        holder = found.get(part) if part else found
        if isinstance(holder, dict):
            lying = {name: str(beside / holder[name]) for name in names if lies_at(holder.get(name), beside)}
            holder |= lying
    return found


NAMED_OR_PLACED = {"": ("encoder",), "negatives": ("model",), "evaluate_after": ("domain", "general")}
"""Settings that are names, or paths where something lies there; by the part of the job they stand in."""
PLACES = ("folder", "jsonl", "corpus")


def lies_at(value: Any, beside: Path) -> bool:
    """Whether a setting is a path of something."""
    return isinstance(value, str) and (beside / value).exists()


def placed(item: Any, beside: Path) -> Any:
    """A part of the job with its paths made absolute; anything else as it is."""
    if not isinstance(item, dict):
        return item
    paths = {name: item[name] for name in PLACES if isinstance(item.get(name), str)}
    return item | {name: str(beside / Path(path).expanduser()) for name, path in paths.items()}


def described(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first thing that is wrong, with where it stands and what would be right."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        known = ", ".join(fields_at(kind, first["loc"][:-1]))
        return f"unknown setting {place}; there are {known}"
    if first["type"] == "missing":
        return f"{place} is missing"
    message = first["msg"].removeprefix("Value error, ")
    return f"{place or 'the job'}: {message}, got {first['input']!r:.60}" if place else message


def fields_at(kind: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """The names of the settings at a place."""
    for part in loc:
        if isinstance(part, str) and part in kind.model_fields:
            annotation = kind.model_fields[part].annotation
            kind = next(one for one in nested_models(annotation))
    return list(kind.model_fields)


def nested_models(annotation: Any) -> list[type[BaseModel]]:
    """The models in a type such as tuple[Model, …] or Model | None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in nested_models(part)]
