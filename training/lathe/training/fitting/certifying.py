"""Last stage of a fit: the certificate of the chain, and its provenance."""

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from lathe.training.fitting.code_search import CodeSearch
from lathe.training.fitting.fit_state import FitState
from lathe.training.fitting.split import sort_distinct
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.base import Transform
from lathe.transforms.chain import Chain, retained_subspace
from lathe.transforms.progress import Progress
from lathe.transforms.quality import certify


def certify_chain(state: FitState, on_progress: Progress) -> None:
    """Measure the chain on held-out rows, and set its metadata to encoders, provenance and certificate. Also sets
    `state.certificate`, and `state.distribution`, the distribution of the rows.
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
    """Return the provenance of a chain as a dict that can be serialized as JSON. It holds no texts and no paths of this
    machine.

    Args:
        source: name of the source.
        rows: number of its rows.
        rows_digest: digest of these rows.
        seed: seed of the split.
        command: the user's command; None for none.
        gates: bounds on the certificate.
        left_out: reasons why files of the source were left out, by name.
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
    """Return kind and training log, as a dict, of each step that was trained by gradient descent."""
    steps = [step for step in chain.transforms if isinstance(step, Transform)]
    return [{"kind": step.kind} | step.training_log.as_json() for step in steps if step.training_log is not None]


def _list_source_warnings(state: FitState) -> list[str]:
    """Return warnings about the source for the certificate. They report missing out-of-domain text, files left out or
    empty, blank texts, and repeated rows.
    """
    encoded, warnings = state.encoded, []
    if not state.out_of_domain:
        warnings.append("not measured on out-of-domain text: the vectors name no encoder to make any with")
    warnings += [f"{name} was left out: {reason}" for name, reason in encoded.left_out.items()]
    warnings += [f"{name} holds no rows" for name in encoded.empty]
    if encoded.blank:
        warnings.append(f"{encoded.blank} blank texts were left out")
    if repeated := len(encoded.hashes) - len(sort_distinct(encoded.hashes)):
        warnings.append(f"{repeated} rows repeat others; they count in the fit, and once among the held-out")
    return warnings
