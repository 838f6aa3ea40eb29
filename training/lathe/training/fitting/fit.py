"""Fits of chains: source → vectors on disk → fitted chain → certificate, in stages.

A stage is a function that reads and extends the `FitState`. `STAGES` lists the stages in order. The last stage makes
the certificate and the provenance of the chain. The caller publishes or saves the fitted chain.
"""

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lathe.training.encoder.devices import best_device
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.errors import FitError
from lathe.training.fitting.code_search import CodeSearch, encode_heldout_halves, read_queries, search_codes
from lathe.training.fitting.encoding import LOCAL, FitEngine, encode_source
from lathe.training.fitting.fit_state import FitState, FittedChain
from lathe.training.fitting.out_of_domain import OutOfDomainTexts, list_built_in_corpora
from lathe.training.fitting.pairs import read_and_encode_pairs
from lathe.training.fitting.requests import NewFit, list_failed_gates
from lathe.training.fitting.split import sort_distinct, split_heldout
from lathe.training.fitting.stacked import SelectedRows
from lathe.training.sources.source import open_source
from lathe.training.workspace import claim_workspace_folder
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.base import Transform
from lathe.transforms.chain import Chain, retained_subspace
from lathe.transforms.linear.whitening import compute_shrinkage_weight
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import certify
from lathe.transforms.statistics import Gaussian, moments_of, unit_rows
from lathe.transforms.vectors import FloatArray, Vectors

MAX_FEW_ROWS = 350
"""Largest number of rows to which general vectors are added. From 500 rows on, none help (benchmarks/codes.md)."""

MIN_WEIGHT = 0.02
"""Minimum weight of general vectors. With a smaller weight, they are left out, because rows would be repeated often."""

GENERAL_SOURCE = "pydoc:topics"
"""Source of general texts. Certificates of chains that were fitted on other texts are not measured on these texts."""

COVARIANCE_KINDS = frozenset({"codes", "pca"})
"""Kinds of steps that need a covariance, which few rows estimate badly. Whitening has a shrinkage of its own."""

SAMPLED_ROWS = 4000
"""Number of vectors that are sampled from a Gaussian: about ten for each dimension."""


@contextmanager
def _open_targets(state: FitState, on_progress: Progress) -> Iterator[Vectors | None]:
    """Yield the encoded or read targets of a fit, one for each row, `(n, k)`, or None. Another number of rows raises.

    A target encoder without a source of targets encodes the texts of the fit's source. The vectors exist only within
    the block, see `claim_workspace_folder`.

    Raises:
        SourceError: if the targets cannot be read.
        FitError: if the targets are texts without an encoder, the numbers of targets and rows differ, or files of the
            source were left out.
    """
    encoder, requested = state.target_encoder, state.request.targets
    if requested is None and encoder is None:
        yield None
        return
    if requested is not None and state.encoded.left_out:
        left_out = ", ".join(state.encoded.left_out)
        raise FitError(f"{left_out} of the source was left out: the rows no longer match the targets; repair the file")
    targets = state.source if requested is None else open_source(requested.location)
    if encoder is None and targets.kind() == "texts":
        raise FitError(f"the targets {targets.name} are texts: give vectors, or name a target encoder")
    key = f"{targets.workspace_key(encoder.vectors_key if encoder else None)[:30]}-t"
    with claim_workspace_folder(state.workspace, key) as folder:
        vectors = encode_source(targets, encoder, folder, on_progress, state.engine).vectors
        rows, source_rows = vectors.shape[0], state.encoded.vectors.shape[0]
        if rows != source_rows:
            raise FitError(
                f"the targets have {rows} rows and the source has {source_rows}: give one target for each row (blank "
                "texts do not count)"
            )
        yield vectors


def _certify_chain(state: FitState, on_progress: Progress) -> None:
    """Measure the fitted chain on held-out rows, and set the state's certificate and distribution and the metadata.

    The metadata of `state.chain` are encoders, provenance and certificate. The distribution is of the fitted rows.
    """
    on_progress(0.0, "measuring on held-out vectors")
    encoder, pairs = state.encoder, state.pairs
    certificate = certify(
        state.chain,
        state.heldout,
        n_fit=len(state.fit_rows),
        seed=state.request.seed,
        out_of_domain=state.out_of_domain,
        warnings=_list_source_warnings(state) + (pairs.warnings if pairs else []),
        targets=None if state.targets is None else np.array(state.targets[state.heldout_rows]),
        pairs=pairs.test if pairs else None,
        out_of_domain_pairs=pairs.out_of_domain if pairs else None,
    )
    if "codes" in certificate:
        certificate["codes"] |= (state.search or CodeSearch(state.chain, [], {})).describe()
    state.certificate = certificate
    state.chain.metadata = {
        "encoder": encoder.describe() if encoder else None,
        "target_encoder": state.target_encoder.describe() if state.target_encoder else None,
        "provenance": build_provenance(
            state.source.name,
            rows=int(state.encoded.vectors.shape[0]),
            rows_digest=state.encoded.digest,
            seed=state.request.seed,
            command=state.command,
            gates=state.request.gates,
            left_out=state.encoded.left_out,
        )
        | {"training": list_training_logs(state.chain)},
        "certificate": certificate,
    }
    state.distribution = FitDistribution.measure(state.rows, state.heldout, retained_subspace(state.chain))


def build_provenance(
    source: str,
    *,
    rows: int,
    rows_digest: str,
    seed: int,
    command: str | None,
    gates: Mapping[str, float] | None = None,
    left_out: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Build the provenance of a chain of transforms as a JSON-serializable dict.

    It has source, seed, gates, command and library versions, but no texts.

    Args:
        source: name of the source, without folders of this machine.
        rows: number of rows of the source.
        rows_digest: digest of these rows.
        seed: seed of the split.
        command: the user's command; None without a command.
        gates: bounds on the certificate; None without gates.
        left_out: reasons why files of the source were left out, by name; None if none were.
    """
    return {
        "source": source,
        "left_out": dict(left_out or {}),
        "rows": rows,
        "rows_digest": rows_digest,
        "seed": seed,
        "gates": dict(gates or {}),
        "command": command,
        "libraries": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }


def list_training_logs(chain: Chain) -> list[dict[str, Any]]:
    """List the training logs of the transforms that were trained by gradient descent, as dicts with their kind."""
    steps = [step for step in chain.transforms if isinstance(step, Transform)]
    return [{"kind": step.kind} | step.training_log.as_json() for step in steps if step.training_log is not None]


def _list_source_warnings(state: FitState) -> list[str]:
    encoded, warnings = state.encoded, []
    if not state.out_of_domain:
        warnings.append("not measured on out-of-domain text: the vectors have no encoder to encode such text with")
    warnings += [f"{name} was left out: {reason}" for name, reason in encoded.left_out.items()]
    warnings += [f"{name} holds no rows" for name in encoded.empty]
    if encoded.blank:
        warnings.append(f"{encoded.blank} blank texts were left out")
    if repeated := len(encoded.hashes) - len(sort_distinct(encoded.hashes)):
        warnings.append(f"{repeated} rows repeat others; they all count in the fit, and once among held-out rows")
    return warnings + ([state.general_warning] if state.general_warning else [])


Stage = tuple[Callable[[Any, Progress], None], str, float]
"""A stage: its function of the state and a progress callback, a description, and the progress in [0, 1] at its end."""


@contextmanager
def fit_new_chain(
    request: NewFit,
    encoder: TextEncoder | None,
    workspace: Path,
    on_progress: Progress,
    command: str | None = None,
    target_encoder: TextEncoder | None = None,
    engine: FitEngine = LOCAL,
    general: Gaussian | None = None,
) -> Iterator[FittedChain]:
    """Fit a chain of transforms on a source, certify it on held-out rows, and yield it. Too few distinct rows raise.

    This context manager does the work when it is entered. The chain is also certified on out-of-domain texts. The
    encoded vectors exist only within the block: the workspace folder is deleted if the block succeeds. After an error
    or a kill the folder stays, and the next fit of the same source resumes the encoding.

    Args:
        request: what to fit.
        encoder: needed for texts; None for vectors without an encoder.
        workspace: folder for the workspace folders.
        on_progress: called with progress in [0, 1] and a message.
        command: the user's command, for the provenance.
        target_encoder: the encoder that `request.target_encoder` names.
        engine: encodes the source and computes moments.
        general: Gaussian of general vectors of the encoder, for fits on few rows; None encodes general texts instead.

    Raises:
        SourceError: if the source cannot be read.
        FitError: as `NewFit.check`, for too few distinct rows, or if targets do not match the rows.
        TransformError: if the steps cannot be fitted on the vectors.
        EngineError: if the engine's workers cannot do the work.
    """
    chain = request.check()
    state = FitState(
        request=request,
        encoder=_prepare_encoder(encoder, chain, request.prompt_name),
        target_encoder=None if target_encoder is None else with_document_prompt(target_encoder),
        workspace=workspace,
        engine=engine,
        command=command,
        chain=chain,
        source=open_source(request.source.location, request.bad_shards),
        general=general,
        corpora=OutOfDomainTexts(
            list_built_in_corpora(request.source.path) | request.out_of_domain, workspace / "out_of_domain"
        ),
    )
    with state.files:
        start = 0.0
        for stage, words, end in STAGES:
            on_progress(start, words)
            stage(state, part_of(on_progress, start, end))
            start = end

        # Yielded while the files are open: the caller may still read the encoded vectors.
        failed_gates = list_failed_gates(request.gates, state.certificate)
        yield FittedChain(state.chain, state.distribution, state.certificate, failed_gates, state.encoded)


def _prepare_encoder(encoder: TextEncoder | None, chain: Chain, prompt_name: str | None) -> TextEncoder | None:
    """Check that a chain takes an encoder's vectors, and return a copy of the encoder with another default prompt.

    The prompt is `prompt_name`, or the prompt for documents if `prompt_name` is None. Returns None without an encoder.

    Raises:
        TransformError: if the chain does not take vectors of the encoder's dimensions.
        EncoderError: if the encoder has no prompt with this name.
    """
    if encoder is None:
        return None
    chain.signature(encoder.dimensions)  # before hours of encoding, not after
    return with_document_prompt(encoder, prompt_name)


def _encode_rows(state: FitState, on_progress: Progress) -> None:
    """Encode the source's texts, or copy its vectors, to a workspace. Sets `state.folder` and `state.encoded`."""
    key = state.source.workspace_key(state.encoder.vectors_key if state.encoder else None)[:32]
    state.folder = state.files.enter_context(claim_workspace_folder(state.workspace, key))
    state.encoded = encode_source(state.source, state.encoder, state.folder, on_progress, state.engine)


def _encode_target_rows(state: FitState, on_progress: Progress) -> None:
    state.targets = state.files.enter_context(_open_targets(state, on_progress))


def _encode_query_pairs(state: FitState, on_progress: Progress) -> None:
    request = state.request
    state.pairs = read_and_encode_pairs(
        request.pairs,
        request.test_pairs,
        state.encoder,
        state.encoded,
        state.corpora,
        request.seed,
        on_progress,
    )


def _split_rows(state: FitState, _on_progress: Progress) -> None:
    """Split the rows at random into rows to fit on and held-out rows.

    Sets `state.fit_rows` and `state.heldout_rows` (indices), and `state.rows` (vectors to fit on).
    """
    state.fit_rows, state.heldout_rows = split_heldout(state.encoded.hashes, state.request.seed)
    state.rows = state.engine.select_rows(state.encoded.vectors, state.fit_rows)


def _fit_steps(state: FitState, on_progress: Progress) -> None:
    """Fit the chain's transforms in place, and with a budget of bytes search for byte codes that replace the chain.

    If the rows are few, general vectors may be added to them. A search sets `state.search`.
    """
    request, chain = state.request, state.chain
    queries = None
    if request.queries is not None:
        queries = read_queries(request.queries.location, state.encoder, state.encoded.vectors.shape[1])

    rows = _add_general_rows(state, part_of(on_progress, 0, 0.1))
    device = best_device() if state.encoder is None else state.encoder.device
    chain.to(device if device.startswith("cuda") else "cpu").fit(  # other devices have no float64
        rows,
        on_progress=part_of(on_progress, 0.1, 0.5),
        targets=None if state.targets is None else SelectedRows(state.targets, state.fit_rows),
        checkpoints=state.folder,
        queries=queries,
        pairs=None if state.pairs is None else state.pairs.fit,
    )
    chain.to("cpu")
    if request.bytes is not None:
        _search_codes(state, rows, queries, part_of(on_progress, 0.5, 1))


def _add_general_rows(state: FitState, on_progress: Progress) -> Vectors:
    """Return the rows, with general vectors added if the rows are few and a step needs a covariance. May set a warning.

    Sets `state.general_warning` if general vectors were added. None are added without an encoder, or for a fit on
    targets or pairs.
    """
    needs_covariance = any(step.kind in COVARIANCE_KINDS for step in state.chain.transforms)
    if len(state.fit_rows) > MAX_FEW_ROWS or not needs_covariance or state.encoder is None:
        return state.rows
    # General texts have no targets and no pairs.
    if state.targets is not None or state.pairs is not None or state.request.source.path == GENERAL_SOURCE:
        return state.rows

    name = "the texts of Lathe's starter chains"
    if state.general is not None:
        general = sample_unit_rows(state.general)
    else:
        name = f"general text ({GENERAL_SOURCE})"
        texts = OutOfDomainTexts({name: GENERAL_SOURCE}, state.corpora.folder)
        general = texts.encode(state.encoder, on_progress)[name]
    rows, share = join_general_rows(np.array(state.encoded.vectors[state.fit_rows]), general)
    if share:
        state.general_warning = f"fitted on {len(state.fit_rows)} rows and general vectors ({share:.0%}) of {name}"
    return rows


def _search_codes(state: FitState, rows: Vectors, queries: FloatArray | None, on_progress: Progress) -> None:
    halves = encode_heldout_halves(
        state.source, state.encoder, state.encoded.hashes[state.heldout_rows], state.request.seed
    )
    state.search = search_codes(
        state.chain, rows, halves, state.heldout, queries, on_progress, with_codebooks=state.general_warning is None
    )
    state.chain = state.search.chain


def _encode_out_of_domain(state: FitState, on_progress: Progress) -> None:
    state.out_of_domain = state.corpora.encode(state.encoder, on_progress)


STAGES: tuple[Stage, ...] = (
    (_encode_rows, "reading the source", 0.5),
    (_encode_target_rows, "encoding targets", 0.53),
    (_encode_query_pairs, "encoding pairs", 0.55),
    (_split_rows, "splitting the rows", 0.55),
    (_fit_steps, "fitting", 0.85),
    (_encode_out_of_domain, "encoding out-of-domain text", 0.97),
    (_certify_chain, "measuring on held-out vectors", 1.0),
)
"""Stages of a fit in order. The progress at their ends is from the time that some thousand texts take."""


def sample_unit_rows(gaussian: Gaussian) -> FloatArray:
    """Sample `SAMPLED_ROWS` vectors `(m, d)` from a Gaussian with a fixed seed, and normalize them."""
    noise = np.random.default_rng(0).standard_normal((SAMPLED_ROWS, gaussian.dimensions), np.float32)
    *deviations, spread = np.sqrt(gaussian.variances)
    along = (noise @ gaussian.directions.T) * (np.array(deviations) - spread)
    rows = gaussian.mean + spread * noise + along @ gaussian.directions
    return unit_rows(torch.from_numpy(rows)).numpy()


def join_general_rows(rows: FloatArray, general: FloatArray) -> tuple[FloatArray, float]:
    """Add general vectors `(m, d)` to the rows of a fit by the best shrinkage weight, or none below `MIN_WEIGHT`.

    Rows are repeated until the share of general vectors is about that weight. With a weight below `MIN_WEIGHT`, the
    rows are returned unchanged.

    The weight shrinks the rows' covariance towards the general covariance (Ledoit and Wolf 2004): it is the expected
    squared error of the rows' covariance, relative to the squared distance between the two covariances.

    Returns:
        The rows to fit on, and the share in [0, 1) of general vectors among them.
    """
    weight = compute_shrinkage_weight(moments_of(rows), moments_of(general).covariance(ddof=0))
    if weight < MIN_WEIGHT:
        return rows, 0.0
    times = max(1, round((1 / weight - 1) * len(general) / len(rows)))
    joined = np.concatenate([np.repeat(rows, times, axis=0), general])
    return joined, len(general) / len(joined)
