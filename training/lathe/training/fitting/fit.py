"""The fit job: source → vectors on disk → fitted chain → certificate."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from lathe.training.encoder.devices import best_device
from lathe.training.encoder.text_encoder import TextEncoder, with_document_prompt
from lathe.training.errors import FitError
from lathe.training.fitting.code_search import (
    CodeSearch,
    encode_heldout_halves,
    keep_default,
    read_queries,
    search_codes,
)
from lathe.training.fitting.earlier_version import EarlierVersion, compute_stored_moments
from lathe.training.fitting.encoding import EncodedSource, encode_source
from lathe.training.fitting.engines import LOCAL, Engine
from lathe.training.fitting.fit_request import MIN_DISTINCT_ROWS, FitRequest
from lathe.training.fitting.gates import list_failed_gates, require_gates
from lathe.training.fitting.out_of_domain import OutOfDomainTexts
from lathe.training.fitting.pairs import EncodedPairs, encode_pairs, require_query_pairs_or_none
from lathe.training.fitting.personal_data import (
    describe_personal_data,
    require_many_queries,
    require_query_files,
)
from lathe.training.fitting.stacked import Rows
from lathe.training.fitting.targets import encode_targets, require_pairs_or_none
from lathe.training.sources.source import Source, open_source
from lathe.training.workspace import claim_workspace_folder
from lathe.transforms.artifact import FitDistribution, FitStatistics
from lathe.transforms.base import Transform
from lathe.transforms.chain import Chain, build_steps, retained_subspace
from lathe.transforms.progress import Progress, part_of
from lathe.transforms.quality import Certificate, certify
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import FloatArray, Vectors

HELDOUT_SHARE = 0.2
"""Share of the distinct rows that is held out."""

MAX_HELDOUT = 5000
"""Maximum number of held-out rows: enough for recall@10 to ±.003; memory and time of the metrics grow with its
square."""

MIN_HELDOUT = 50
"""Minimum number of held-out rows, unless that is more than half of the distinct rows."""

SPLIT_ROWS = 1_000_000
"""Rows processed at a time when rows are split."""

FITTED = 0.5
"""Progress of the stage `fit` at which the steps are fitted; the search for codes takes the rest."""

STAGES = {
    "encode": (0.0, 0.5),
    "targets": (0.5, 0.55),
    "fit": (0.55, 0.85),
    "out-of-domain": (0.85, 0.97),
    "certify": (0.97, 1.0),
}
"""Start and end of each stage of the job on the progress scale, from 0 to 1, by the time that they take for some
thousand texts."""


@dataclass(frozen=True)
class FittedChain:
    """Fitted chain with its certificate and statistics.

    Attributes:
        chain: the chain; its metadata holds encoder, provenance and certificate.
        statistics: statistics of the fitted rows, to be stored with the chain.
        certificate: see `lathe.transforms.quality.certify`.
        failed_gates: keys of the gates that failed.
        encoded: the whole source as vectors.
    """

    chain: Chain
    statistics: FitStatistics
    certificate: Certificate
    failed_gates: list[str]
    encoded: EncodedSource


@contextmanager
def fit_chain(
    request: FitRequest,
    encoder: TextEncoder | None,
    workspace: Path,
    on_progress: Progress,
    command: str | None = None,
    target_encoder: TextEncoder | None = None,
    earlier: EarlierVersion | None = None,
    engine: Engine = LOCAL,
) -> Iterator[FittedChain]:
    """Fit a chain on a source, certify it on held-out rows and out-of-domain text, and yield the result.

    A context manager: the encoded vectors exist only within the block. Their workspace folder is deleted if the block
    succeeds; after an error or a kill it stays, and the next fit of the same source resumes it. With `earlier`, no new
    chain is fitted: the source's rows are added to that version.

    Args:
        request: what to fit.
        encoder: needed for texts; None for vectors without an encoder.
        workspace: folder for the workspace folders and for cached out-of-domain vectors.
        on_progress: called with progress in [0, 1] and a message.
        command: the user's command, for the provenance.
        target_encoder: encoder whose vectors of the same texts are the targets, for steps fitted on pairs.
        earlier: the version that `request.add_to` names.
        engine: encodes the source and computes moments.

    Raises:
        SourceError: if the source cannot be read.
        FitError: if there are too few distinct rows, a gate is unknown, rows and targets do not pair up, or the rows to
            add come from another encoder or were added already.
        TransformError: if the steps do not fit the vectors.
        EngineError: if the engine's workers cannot do the work.
    """
    chain = Chain(build_steps(request.all_steps), request.normalize) if earlier is None else earlier.chain
    source = open_source(request.source, request.bad_shards)
    require_gates(request.gates)
    require_query_files(request)
    if earlier is None:
        require_pairs_or_none(chain, request.targets, target_encoder)
        require_query_pairs_or_none(chain, request.pairs, request.test_pairs)
    else:
        earlier.require_same_space(encoder)
        require_no_targets(request, target_encoder)
    if encoder is not None:
        chain.signature(encoder.dimensions)  # before hours of encoding, not after
        encoder = with_document_prompt(encoder, request.prompt_name)
    if target_encoder is not None:
        target_encoder = with_document_prompt(target_encoder)
    with ExitStack() as within:
        folder = within.enter_context(
            claim_workspace_folder(workspace, source.workspace_key(encoder.vectors_key if encoder else None)[:32])
        )
        encoded = encode_source(source, encoder, folder, _stage_progress("encode", on_progress), engine)
        if earlier is not None:
            earlier.require_new(encoded.digest)
        corpora = OutOfDomainTexts.from_request(request)
        on_targets = _stage_progress("targets", on_progress)
        targets = within.enter_context(
            encode_targets(request.targets, source, target_encoder, encoded, workspace, on_targets, engine)
        )
        labelled = encode_pairs(
            request.pairs,
            request.test_pairs,
            encoder,
            encoded,
            corpora,
            request.seed,
            on_targets,
            quote=not request.personal_data,
        )
        fit_rows, heldout_rows = split_heldout(encoded.hashes, request.seed)
        rows, reporting = engine.select_rows(encoded.vectors, fit_rows), _stage_progress("fit", on_progress)
        moments: dict[int, Moments] = {}
        said: list[str] = []
        search: CodeSearch | None = None
        if earlier is None:
            paired = None if targets is None else Rows(targets, fit_rows)
            chain, search = _fit_new_chain(
                request, chain, encoder, source, encoded, heldout_rows, rows, paired, labelled, folder, reporting
            )
            if request.keep_moments:
                moments, said = compute_stored_moments(chain, rows)
        else:
            chain, moments, said = earlier.refit_with_rows(rows, reporting)
        out_of_domain = corpora.encode(
            encoder, workspace / "out_of_domain", _stage_progress("out-of-domain", on_progress)
        )
        on_progress(STAGES["certify"][0], "measuring on held-out vectors")
        heldout = np.array(encoded.vectors[heldout_rows])
        certificate = certify(
            chain,
            heldout,
            n_fit=len(fit_rows) + (earlier.count if earlier else 0),
            seed=request.seed,
            out_of_domain=out_of_domain,
            warnings=_list_source_warnings(encoded, out_of_domain) + said + (labelled.warnings if labelled else []),
            targets=None if targets is None else np.array(targets[heldout_rows]),
            pairs=labelled.test if labelled else None,
            out_of_domain_pairs=labelled.out_of_domain if labelled else None,
        )
        certificate |= describe_personal_data(request)
        if "codes" in certificate:
            certificate["codes"] |= (search or CodeSearch(chain, [], {})).describe()
        chain.metadata = {
            "encoder": encoder.describe() if encoder else None,
            "target_encoder": target_encoder.describe() if target_encoder else None,
            "provenance": _build_provenance(request, source, encoded, command)
            | {"training": list_training_logs(chain)},
            "certificate": certificate,
        }
        before, distribution = earlier.reference if earlier else None, None
        if earlier is None or before is not None:  # else nobody knows what the older rows looked like
            distribution = FitDistribution.measure(rows, heldout, retained_subspace(chain), before)
        if earlier is not None:
            certificate["compared_to"] = earlier.certify_on(heldout, out_of_domain, request.seed)
            chain.metadata["target_encoder"] = earlier.chain.metadata.get("target_encoder")
            chain.metadata["provenance"] |= earlier.provenance()
        statistics = FitStatistics(moments, distribution)
        yield FittedChain(chain, statistics, certificate, list_failed_gates(request.gates, certificate), encoded)


def _fit_new_chain(
    request: FitRequest,
    chain: Chain,
    encoder: TextEncoder | None,
    source: Source,
    encoded: EncodedSource,
    heldout_rows: NDArray[np.int64],
    rows: Vectors,
    targets: Rows | None,
    labelled: EncodedPairs | None,
    folder: Path,
    on_progress: Progress,
) -> tuple[Chain, CodeSearch | None]:
    """Fit the steps of a chain, and search for the best codes if the request sets a budget of bytes.

    Args:
        request: what to fit.
        chain: unfitted.
        encoder: encoder of the source, or None.
        source: the source, read again for a search.
        encoded: its vectors.
        heldout_rows: indices of the held-out rows.
        rows: rows to fit on, `(n, d)`.
        targets: targets of these rows, or None.
        labelled: queries with their relevant documents, or None.
        folder: folder for the state of training.
        on_progress: called with progress in [0, 1] and a message.

    Returns:
        The chain on the CPU, and the search, None without a budget.
    """
    queries = None if request.queries is None else read_queries(request.queries, encoder, encoded.vectors.shape[1])
    require_many_queries(request, queries)
    on_device = chain.to(_choose_fitting_device(encoder))
    pairs = None if labelled is None else labelled.fit
    fitting = part_of(on_progress, 0, FITTED)
    on_device.fit(rows, fitting, targets, checkpoints=folder, queries=queries, pairs=pairs)
    chain.to("cpu")
    if request.bytes is None:
        return chain, None
    halves = encode_heldout_halves(source, encoder, encoded.hashes[heldout_rows], request.seed)
    if isinstance(halves, str):
        return chain, keep_default(chain, halves)
    search = search_codes(
        chain,
        rows,
        halves,
        np.array(encoded.vectors[heldout_rows]),
        queries,
        request.keep_moments,
        part_of(on_progress, FITTED, 1),
    )
    return search.chain, search


def split_heldout(hashes: NDArray[np.uint64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split rows by their hashes; return the indices of the rows to fit on and of the held-out rows, both ascending.

    The seed and a row's content decide its side, so equal rows are never on both. Of equal held-out rows only the first
    is returned. `HELDOUT_SHARE` of the distinct rows are held out, at least `MIN_HELDOUT` or half of them, whichever
    is fewer, and at most `MAX_HELDOUT`.

    Args:
        hashes: 64-bit hash of each row `(n,)`.
        seed: seed of the choice of held-out hashes.

    Raises:
        FitError: if there are fewer than `MIN_DISTINCT_ROWS` distinct rows.
    """
    distinct = _distinct_hashes(hashes)
    if len(distinct) < MIN_DISTINCT_ROWS:
        raise FitError(f"a fit needs at least {MIN_DISTINCT_ROWS} different rows, the source has {len(distinct)}")
    wanted = max(int(len(distinct) * HELDOUT_SHARE), min(MIN_HELDOUT, len(distinct) // 2))
    order = np.random.default_rng(seed).permutation(len(distinct))
    chosen = np.sort(distinct[order[: min(wanted, MAX_HELDOUT)]])
    del distinct, order  # of millions of rows these are what takes memory
    held = _find_members(chosen, hashes)
    rows = np.flatnonzero(held)
    _, first = np.unique(hashes[rows], return_index=True)
    return np.flatnonzero(~held), rows[np.sort(first)]


def _distinct_hashes(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the distinct hashes, sorted; `np.unique` would use a table five times as large."""
    ordered = np.sort(hashes)
    is_first = np.ones(len(ordered), bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return ordered[is_first]


def _find_members(chosen: NDArray[np.uint64], hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Return whether each hash is in `chosen`, as a mask `(n,)`; `np.isin` would sort all hashes again.

    Args:
        chosen: sorted hashes, at least one.
        hashes: `(n,)`.
    """
    found = np.zeros(len(hashes), bool)
    for start in range(0, len(hashes), SPLIT_ROWS):
        block = hashes[start : start + SPLIT_ROWS]
        places = np.minimum(np.searchsorted(chosen, block), len(chosen) - 1)
        found[start : start + SPLIT_ROWS] = chosen[places] == block
    return found


def _build_provenance(
    request: FitRequest, source: Source, encoded: EncodedSource, command: str | None
) -> dict[str, Any]:
    """Build the provenance of a chain as a JSON-serializable dict, without texts and without paths of this machine.

    It has the source's name, row count and digest, files left out, seed, gates, command, and library versions.
    """
    return {
        "source": source.name,
        "left_out": dict(encoded.left_out),
        "rows": int(encoded.vectors.shape[0]),
        "rows_digest": encoded.digest,
        "seed": request.seed,
        "gates": dict(request.gates),
        "command": command,
        "libraries": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }


def _choose_fitting_device(encoder: TextEncoder | None) -> str:
    """Return the device to train steps on: the encoder's GPU, or any GPU for vectors without an encoder; else 'cpu'."""
    device = best_device() if encoder is None else encoder.device
    return device if device.startswith("cuda") else "cpu"  # other devices have no float64


def list_training_logs(chain: Chain) -> list[dict[str, Any]]:
    """Return kind and training log, as a dict, of each step that was trained by gradient descent."""
    steps = [step for step in chain.transforms if isinstance(step, Transform)]
    return [{"kind": step.kind} | step.training_log.as_json() for step in steps if step.training_log is not None]


def _list_source_warnings(encoded: EncodedSource, out_of_domain: Mapping[str, FloatArray]) -> list[str]:
    """Return warnings about the source for the certificate.

    They report missing out-of-domain text, files left out or empty, blank texts, and repeated rows.
    """
    found = []
    if not out_of_domain:
        found.append("not measured on out-of-domain text: the vectors name no encoder to make any with")
    found += [f"{name} was left out: {reason}" for name, reason in encoded.left_out.items()]
    found += [f"{name} holds no rows" for name in encoded.empty]
    if encoded.blank:
        found.append(f"{encoded.blank} blank texts were left out")
    repeated = len(encoded.hashes) - len(_distinct_hashes(encoded.hashes))
    if repeated:
        found.append(f"{repeated} rows repeat others; they count in the fit, and once among the held-out")
    return found


def require_no_targets(request: FitRequest, target_encoder: object | None) -> None:
    """Raise `FitError` if targets come with rows to add to a version, because steps fitted on pairs keep their map."""
    if request.targets is not None or target_encoder is not None:
        raise FitError(f"steps fitted on pairs keep the map of {request.add_to}: rows are added without targets")


def _stage_progress(name: str, on_progress: Progress) -> Progress:
    return part_of(on_progress, *STAGES[name])
