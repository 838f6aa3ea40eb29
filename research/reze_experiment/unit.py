"""One unit of an experiment, run in its own process: a target, a condition, a learning rate and a seed.

The encoder is pre-finetuned as the condition says on every source but the target, and scored. For each n it is then
fine-tuned on n of the target's training rows, and scored again.
"""

import hashlib
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from filelock import FileLock
from numpy.typing import NDArray

from lathe.training.datasets.pairs import Pair
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.loading import load_model
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.encoder.text_encoder import NO_PROMPT
from lathe.training.finetuning.job import TrainingSettings
from lathe.training.finetuning.mixture import Mixture
from lathe.training.finetuning.reference import ReferenceVectors
from lathe.training.finetuning.regularizers.regularizer import NoRegularizer
from lathe.training.finetuning.regularizers.reze import Reze
from lathe.training.finetuning.run import MODEL, save_model
from lathe.training.finetuning.trainer import TrainingResult, train
from lathe.training.journal import Journal
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.errors import TransformError
from lathe.transforms.quality import isoscore
from lathe.transforms.statistics import Moments
from research.reze_experiment.conditions import Condition
from research.reze_experiment.geometry import write_geometry
from research.reze_experiment.results import Result, read_result
from research.reze_experiment.scoring import Scorer
from research.reze_experiment.targets import Target, shuffle_pairs

SHOWN_PAIRS = 40
"""Number of pairs per source whose vectors are stored for the plot of the shift (Figure 4)."""
PRETRAINING = "pretraining.json"
"""Name of the file with the training summary of the pre-finetuning."""
POSTPROCESSING = {"pft_whitening": "whitening:form=zca,rcond=1e-6", "pft_flow": "flow"}
"""Steps that are fitted on the target's rows, by method.

With fewer rows than dimensions, some directions have no variance; whitening with rcond drops these directions, because
it cannot divide by their variance.
"""


@dataclass(frozen=True)
class Unit:
    """Unit of work of an experiment, with everything its results depend on.

    Attributes:
        spec: base model, with the sequence length for training.
        device: device to run on; None for the best available one.
        encoder: fingerprint of the base model's weights.
        target: data set that is held out.
        tested: digest of the target's files.
        pairs: training pairs of the target.
        mixture: pairs of the other sources.
        domain: held-out texts of all sources.
        condition: condition.
        training: settings of both stages, with learning rate and seed.
        rows: numbers n of fine-tuning rows, up to the number of the target's pairs.
        untrained: whether the base model itself is scored.
        limit: maximum number of rows, queries or documents of the target's test; None for all.
        out: folder of the experiment.
        shown: whether vectors of pairs are stored for the plot of the shift.
    """

    spec: EncoderSpec
    device: str | None
    encoder: str
    target: Target
    tested: str
    pairs: tuple[Pair, ...]
    mixture: Mixture
    domain: tuple[str, ...]
    condition: Condition
    training: TrainingSettings
    rows: tuple[int, ...]
    untrained: bool
    limit: int | None
    out: Path
    shown: bool

    @property
    def key(self) -> str:
        """File name stem of the results: target, method, and a digest of everything they depend on except `rows`."""
        depends: list[Any] = [self.encoder, self.spec.max_length, self.tested, self.mixture.digest()]
        depends += [self.target.settings.model_dump(mode="json", include={"prompts", "labels"})]
        regularizer = self.condition.regularizer.settings
        depends += [regularizer.model_dump(exclude_defaults=True) if regularizer else None]
        depends += [self.condition.pretrains, self.training.model_dump(exclude_defaults=True), self.limit]
        digest = hashlib.sha256(orjson.dumps(depends)).hexdigest()[:10]
        return f"{self.target.name.replace('/', '_')}-{self.condition.method.replace(' ', '_')}-{digest}"

    @property
    def log(self) -> Journal[Result]:
        """Results log of the unit, with an entry for each cell."""
        return Journal(self.out / "results" / f"{self.key}.jsonl", read_result)

    @property
    def targets(self) -> Path:
        """Folder of what the regularizer prepares, shared by all seeds, learning rates and loss weights."""
        assert self.condition.regularizer.settings is not None  # asked for of regularized conditions only
        chosen = self.condition.regularizer.settings.model_dump(exclude={"loss_weight"}, exclude_defaults=True)
        depends = [self.encoder, self.spec.max_length, self.mixture.digest(), chosen]
        return self.out / "targets" / hashlib.sha256(orjson.dumps(depends)).hexdigest()[:16]

    def list_missing(self) -> list[tuple[str, int]]:
        """Return the cells, as (method, rows), that the results log lacks."""
        known = {(result.method, result.rows) for result in self.log.read()}
        return [cell for cell in self.condition.cells(self.rows, self.untrained) if cell not in known]


def run_unit(unit: Unit) -> list[str]:
    """Run whatever of a unit has no results yet, and return messages about cells that failed.

    Results are appended to the results log. The work folder with models and checkpoints is deleted at the end, but
    stays if an exception is raised.
    """
    if not unit.list_missing():
        return []
    folder = unit.out / "work" / unit.key
    work = Work(unit, folder)
    work.run()
    shutil.rmtree(folder, ignore_errors=True)
    return work.problems


class Work:
    """Execution of one unit.

    Args:
        unit: unit to run.
        folder: folder for its models and checkpoints.

    Attributes:
        problems: messages about cells that failed.
        scorer: scorer on the target's test.
        base: base model.
        reference: stored vectors of the base model; those of the domain texts are encoded here.
    """

    def __init__(self, unit: Unit, folder: Path) -> None:
        self.unit, self.folder = unit, folder
        self.problems: list[str] = []
        self.scorer = Scorer(unit.target, unit.limit)
        self.base = Encoder(unit.spec, unit.device)
        self.reference = ReferenceVectors(self.base, unit.out / "reference")
        self.reference.encode(unit.domain, ignore_progress)

    def run(self) -> None:
        """Pre-finetune and score the encoder, then fine-tune and score it for each n.

        Skip cells that have results. Results are appended to the results log. If `unit.shown`, vectors of pairs are
        stored for the plot of the shift.
        """
        unit = self.unit
        pretrained, trained = self.pretrain()
        missing = unit.list_missing()
        method = unit.condition.method if unit.condition.pretrains else "none"
        if (method, 0) in missing:
            encoder = self.open_encoder(pretrained)
            after = encoder.encode(unit.domain, prompt_name=NO_PROMPT).vectors if unit.domain else None
            self.record(method, 0, encoder.encode(self.scorer.texts, prompt_name=NO_PROMPT).vectors, trained, after)
            if unit.shown and unit.condition.pretrains:
                self.store_relations(encoder)
        for n in unit.rows:
            methods = [method for method, rows in missing if rows == n]
            if methods:
                self.fine_tune(pretrained, n, methods, trained)

    def pretrain(self) -> tuple[Path | None, TrainingResult | None]:
        """Pre-finetune the encoder and save it with its training summary, unless both are in the work folder.

        First the regularizer computes what it needs in `unit.targets`, or loads it, under a lock.

        Returns:
            the model's folder and the training summary; (None, None) for a condition without pre-finetuning.
        """
        unit = self.unit
        if not unit.condition.pretrains:
            return None, None
        path, record = self.folder / MODEL, self.folder / PRETRAINING
        if path.is_dir() and record.is_file():
            return path, TrainingResult(**orjson.loads(record.read_bytes()))
        regularizer = unit.condition.regularizer
        if regularizer.settings is not None:
            folder = unit.targets
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(folder.with_suffix(".lock")):
                regularizer.prepare(self.base, unit.mixture, folder, unit.out / "reference", ignore_progress)
                if isinstance(regularizer, Reze):
                    write_geometry(regularizer, unit.mixture, folder)
        model = self.load_for_training(None)
        trained = train(model, unit.mixture, unit.training, self.folder / "pretraining", ignore_progress, regularizer)
        save_model(model, path)
        record.write_bytes(orjson.dumps(asdict(trained)))
        return path, trained

    def fine_tune(self, pretrained: Path | None, n: int, methods: list[str], trained: TrainingResult | None) -> None:
        """Fine-tune on n of the target's rows, fit post-processing on the same rows, and record the scores of both.

        The fine-tuned model is saved in the work folder, over that of other n. A post-processing method that fails is
        added to `problems`.

        Args:
            pretrained: folder of the model to start from; None for the base model.
            n: number of rows, the first in the seed's order.
            methods: methods to record: that of the condition, and post-processing methods.
            trained: summary of the pre-finetuning, for the results.
        """
        unit, prompts = self.unit, self.unit.target.prompts
        pairs = shuffle_pairs(unit.pairs, unit.training.seed)[:n]
        mixture = Mixture(
            anchors=[prompts.anchor + pair.anchor for pair in pairs],
            positives=[prompts.positive + pair.positive for pair in pairs],
            sources=np.zeros(n, np.int64),
            names=[unit.target.name],
            reports=[],
        )
        model = self.load_for_training(pretrained)
        folder = self.folder / f"finetuning-{n}"
        # Without checkpoints, as it takes seconds.
        train(model, mixture, unit.training, folder, ignore_progress, NoRegularizer(), checkpoints=False)
        save_model(model, self.folder / "finetuned")
        encoder = self.open_encoder(self.folder / "finetuned")
        vectors = encoder.encode(self.scorer.texts, prompt_name=NO_PROMPT).vectors
        if unit.condition.method in methods:
            self.record(unit.condition.method, n, vectors, trained)
        for method in (method for method in methods if method in POSTPROCESSING):
            rows = encoder.encode(
                list(dict.fromkeys([*mixture.anchors, *mixture.positives])), prompt_name=NO_PROMPT
            ).vectors
            try:
                chain = Chain(parse_steps(POSTPROCESSING[method])).fit(rows)
                self.record(method, n, np.asarray(chain.transform(vectors), np.float32), trained)
            except TransformError as error:  # what is fitted afterwards must not stop the others
                self.problems.append(f"{method} on {n} rows of {unit.target.name}: {error}")

    def load_for_training(self, folder: Path | None) -> Any:
        """Load a new copy of the model in the folder, or of the base model if None, in float32 for training."""
        spec = self.unit.spec if folder is None else replace(self.unit.spec, model=str(folder), revision=None)
        return load_model(spec, self.unit.device).float()

    def open_encoder(self, folder: Path | None) -> Encoder:
        """Load the encoder of a trained model in the folder, or return the base encoder if None."""
        if folder is None:
            return self.base
        return Encoder(replace(self.unit.spec, model=str(folder), revision=None), self.unit.device)

    def record(
        self,
        method: str,
        rows: int,
        vectors: NDArray[np.float32],
        trained: TrainingResult | None,
        domain: NDArray[np.float32] | None = None,
    ) -> None:
        """Score the vectors of the target's texts, and append the result to the results log.

        Args:
            method: method of the cell.
            rows: number of fine-tuning rows; 0 for before fine-tuning.
            vectors: vectors `(n, d)` of `scorer.texts`.
            trained: summary of the pre-finetuning, or None.
            domain: vectors of the domain texts `(m, d)`, from which drift and IsoScore are computed; None for neither.
        """
        unit, scores = self.unit, self.scorer.score(vectors)
        drift = None if domain is None else float(1 - np.vecdot(self.reference.vectors(unit.domain), domain).mean())
        done = trained.steps - trained.resumed_from if trained else 0
        result = Result(
            unit=unit.key,
            target=unit.target.name,
            task=unit.target.data.task,
            metric=self.scorer.metric,
            method=method,
            rows=rows,
            learning_rate=unit.training.learning_rate,
            seed=unit.training.seed,
            score=scores.score,
            label_accuracy=scores.label_accuracy,
            drift=drift,
            isoscore=None if domain is None else isoscore(Moments.from_vectors(domain)),
            steps=trained.steps if trained else 0,
            seconds_per_step=trained.seconds / done if trained and done else None,
        )
        unit.log.append([result])

    def store_relations(self, encoder: Encoder) -> None:
        """Store the relations of a few pairs per source, by the base model and by `encoder`, as `relations/<key>.npy`.

        A relation is the vectors of anchor and positive side by side; the file holds `(2, pairs, 2d)` float16.
        """
        mixture = self.unit.mixture
        places = choose_shown_pairs(mixture)
        texts = [[column[place] for place in places] for column in (mixture.anchors, mixture.positives)]
        self.reference.encode([text for column in texts for text in column], ignore_progress)
        after = np.hstack([encoder.encode(column, prompt_name=NO_PROMPT).vectors for column in texts])
        before = np.hstack([self.reference.vectors(column) for column in texts])
        path = self.unit.out / "relations" / f"{self.unit.key}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.stack([before, after]).astype(np.float16))


def choose_shown_pairs(mixture: Mixture) -> list[int]:
    """Return the indices of the first 40 pairs of each source, source by source."""
    return [
        int(place)
        for source in range(len(mixture.names))
        for place in np.flatnonzero(mixture.sources == source)[:SHOWN_PAIRS]
    ]


def ignore_progress(fraction: float, sentence: str) -> None:
    """Ignore progress, because a unit reports none."""
