"""The certificate of a chain: measures of how well the chain preserves the geometry of held-out vectors."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from lathe.transforms.base import QueryPairs, Transform, measure_relevance
from lathe.transforms.chain import Chain
from lathe.transforms.codes import CLIP_DEVIATIONS, MAX_CLIPPED, TransformCoding
from lathe.transforms.errors import InputError
from lathe.transforms.linear import ITQ
from lathe.transforms.quality.diagnostics import diagnose
from lathe.transforms.quality.metrics import (
    NORMAL_QUANTILE,
    cross_recall_at_k,
    local_spearman,
    measure_score_errors,
    normalized_rows,
    positional_stress,
    recall_at_k,
    search_recall_per_row,
)
from lathe.transforms.quality.store_codes import measure_store_recall
from lathe.transforms.vectors import FloatArray

MIN_ROWS_PER_DIMENSION = 10
"""Minimum number of fitted rows for each fitted output direction; fewer rows give a warning."""

MIN_SEARCHED = 11
"""Rows that a search of the ten nearest others needs more than."""
MIN_DEVIATION = 1e-5
"""Standard deviation, relative to the largest, up to which an output dimension counts as constant."""

Certificate = dict[str, Any]
"""JSON object that `certify` returns."""


def certify(
    chain: Chain,
    heldout: FloatArray,
    *,
    n_fit: int | None = None,
    seed: int = 0,
    out_of_domain: Mapping[str, FloatArray] | None = None,
    warnings: list[str] | None = None,
    targets: FloatArray | None = None,
    pairs: QueryPairs | None = None,
    out_of_domain_pairs: Mapping[str, QueryPairs] | None = None,
) -> Certificate:
    """Measure how a fitted chain of transforms changes the geometry of held-out and out-of-domain vectors.

    Neighbours, distances, norms and bytes are measured. Codes are decoded to floats before they are measured. Where a
    chain ends in `codes`, or queries need another map than documents to be compared with them, recall is measured with
    rows mapped as queries; a step that changes queries only is left out. A measure that needs more rows is None.

    Args:
        chain: fitted chain.
        heldout: vectors of the fitted corpus that were not used in the fit, `(n, d)`, without duplicates.
        n_fit: number of rows the chain was fitted on; by default, what the chain remembers of its last fit.
        seed: seed of the split into fitted and held-out rows; stored in the certificate only.
        out_of_domain: vectors of other corpora by name, because an in-domain number alone misleads.
        warnings: warnings from the fit; they precede the certificate's own.
        targets: vectors that the held-out vectors should be mapped to, `(n, k)`, for a chain fitted on targets.
        pairs: queries that were not used in the fit, with their relevant documents.
        out_of_domain_pairs: such queries and documents of other corpora by name; used only with `pairs`.

    Returns:
        The measures and warnings as a dict that can be serialized as JSON, with the keys:

        - `n_fit`, `n_heldout`, `seed`.
        - `local_spearman`, `recall_at_10`, `recall_at_10_rescored_4x`, `positional_stress`: see `measure_geometry`.
        - `mean_norm`, `isoscore`, `bytes_per_vector`, `diagnostics`: `{before, after}` each; `diagnostics` holds what
          `diagnose` returns for the held-out rows and for their outputs.
        - `out_of_domain`: `n` and the measures of `measure_geometry` by corpus.
        - `warnings`: list of sentences.
        - `sizes`, for a nested chain: the measures of `measure_geometry` of the first quarter, half and three quarters
          of the dimensions.
        - `store_recall_at_10`, for a chain with `itq` that ends in floats: `{before, after}`, what a search through a
          store's own signs, integers or TurboQuant codes finds, see `measure_store_recall`.
        - `codes`, for a chain that ends in `codes`: size of the codes and errors of scores.
        - `chosen`, if steps derived parameters from the data: `[{kind, <parameter>: <value>}]`.
        - `alignment`, with targets: `{cosine, recall_at_10}`, the mean cosine of an output to its target, and the
          `cross_recall_at_k` of outputs and targets with k = 10.
        - `relevance`, with pairs: what `compare_searches` returns for searches before and after the chain, and in
          `out_of_domain` the same of `out_of_domain_pairs`.

    Raises:
        InputError: without `n_fit`, for a chain that remembers no fit, such as a folded one.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import PCA, Chain, certify
        >>> rows = np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32)
        >>> certificate = certify(Chain([PCA(8)]).fit(rows[:300]), rows[300:])
        >>> certificate["n_fit"], certificate["n_heldout"], certificate["bytes_per_vector"], certificate["warnings"]
        (300, 100, {'before': 64, 'after': 32}, [])
        >>> 0 < certificate["recall_at_10"] < certificate["recall_at_10_rescored_4x"] < 1
        True
    """
    if n_fit is None:
        n_fit = chain.metadata.get("n_fit", chain.metadata.get("certificate", {}).get("n_fit"))
    if n_fit is None:
        raise InputError("the chain does not know how many rows it was fitted on: pass n_fit")

    after = chain.floats(heldout)
    queries = _map_as_queries(chain, heldout)
    diagnostics = {"before": diagnose(heldout), "after": diagnose(after)}
    certificate: Certificate = {
        "n_fit": n_fit,
        "n_heldout": heldout.shape[0],
        "seed": seed,
        **measure_geometry(heldout, after, queries),
        **{key: {side: diagnosed[key] for side, diagnosed in diagnostics.items()} for key in ("mean_norm", "isoscore")},
        "bytes_per_vector": {"before": 4 * heldout.shape[1], "after": chain.bytes_per_vector},
        "diagnostics": diagnostics,
    }

    if chain.nested:
        full = after.shape[1]
        sizes = sorted({full * quarter // 4 for quarter in (1, 2, 3)} - {0, full})
        # Not a slice of `after`: a chain that normalizes does so again for a prefix.
        certificate["sizes"] = {
            str(k): measure_geometry(heldout, chain.transform(heldout, dimensions=k)) for k in sizes
        }

    # A rotation changes nothing but what a store's own quantizer makes of the vectors.
    if any(isinstance(step, ITQ) for step in chain.steps) and chain.quantizer is None and len(heldout) > MIN_SEARCHED:
        certificate["store_recall_at_10"] = {
            "before": measure_store_recall(heldout, normalized_rows(heldout, np.float32).numpy()),
            "after": measure_store_recall(heldout, after),
        }

    if isinstance(chain.quantizer, TransformCoding) and queries is not None:
        floats = chain.without_quantizer().transform(heldout)
        certificate["codes"] = _measure_codes(chain.quantizer, floats, queries, after)

    if chosen := _list_chosen_parameters(chain):
        certificate["chosen"] = chosen

    if targets is not None:
        certificate["alignment"] = {
            "cosine": float((normalized_rows(after, np.float64) * normalized_rows(targets, np.float64)).sum(1).mean()),
            "recall_at_10": cross_recall_at_k(after, targets, 10) if len(targets) > 10 else None,
        }

    if pairs is not None:
        certificate["relevance"] = _measure_relevance_change(chain, pairs) | {
            "out_of_domain": {
                name: _measure_relevance_change(chain, domain_pairs)
                for name, domain_pairs in (out_of_domain_pairs or {}).items()
            }
        }

    certificate["out_of_domain"] = {
        name: {
            "n": len(vectors),
            **measure_geometry(vectors, chain.floats(vectors), _map_as_queries(chain, vectors)),
        }
        for name, vectors in (out_of_domain or {}).items()
    }
    certificate["warnings"] = [
        *(warnings or []),
        *_list_fit_warnings(chain, n_fit, heldout.shape[0]),
        *_list_constant_output_warnings(heldout, after),
        *_list_clipping_warnings(certificate),
        *_list_relevance_warnings(certificate),
    ]
    return certificate


def measure_geometry(
    before: FloatArray, after: FloatArray, queries: FloatArray | None = None
) -> dict[str, float | None]:
    """Measure how well rows keep neighbours and distances in a reduction. Measures that need more rows are None.

    Args:
        before: rows before the reduction, `(n, d)`.
        after: rows after it, `(n, k)`.
        queries: the rows as they search the others, `(n, k)`, where that is not `after`; recall is then measured by
            their inner products with `after`.

    Returns:
        Local Spearman, recall@10, recall@10 after rescoring 40 candidates, and positional stress by name, each None if
        there are too few rows for it.
    """
    n = before.shape[0]

    def recall(oversampling: int) -> float:
        if queries is None:
            return recall_at_k(before, after, 10, oversampling)
        return float(search_recall_per_row(before, queries, after, 10, oversampling).mean())

    return {
        # Ranks need two other rows, a distance one, and recall more other rows than it has candidates, 10 or 40.
        "local_spearman": local_spearman(before, after) if n >= 3 else None,
        "recall_at_10": recall(1) if n > 10 else None,
        "recall_at_10_rescored_4x": recall(4) if n > 40 else None,
        "positional_stress": positional_stress(before, after) if n >= 2 else None,
    }


def _measure_relevance_change(chain: Chain, pairs: QueryPairs) -> Certificate:
    """Measure nDCG@10 and recall@10 of searches with known relevant documents before and after a chain.

    The result is as `compare_searches` returns it. Before the chain, scores are cosines, and after it the chain's own
    scores.

    Args:
        chain: fitted.
        pairs: vectors before the chain.
    """
    after = pairs.map(chain.transform_queries, chain.floats)
    return compare_searches(pairs.map(_unit_rows, _unit_rows), after)


def compare_searches(before: QueryPairs, after: QueryPairs) -> Certificate:
    """Compare nDCG@10 and recall@10 of the same queries under other vectors. Returns means, gain and interval.

    The vectors may come from two encoders, or from before and after a chain. Scores are inner products.

    Args:
        before: vectors of queries and documents, as they were.
        after: other vectors of the same queries, in the same order, and of documents.

    Returns:
        `{queries, documents, ndcg_at_10: {before, after, gain, ci95}, recall_at_10: {…}}`: the counts, and the mean
        measures of `measure_relevance`, as a dict that can be serialized as JSON. `gain` is the mean difference, and
        `ci95` half the extent of its 95 % interval, paired by query; null for a single query.
    """
    measures: Certificate = {"queries": len(before), "documents": len(before.documents)}
    searches = zip(("ndcg_at_10", "recall_at_10"), measure_relevance(before), measure_relevance(after), strict=True)

    # Paired by query: the spread of the differences is far smaller than the spread of the measures.
    for name, old, new in searches:
        gains = new - old
        # Half the interval is 1.96 standard errors of the mean difference.
        half = NORMAL_QUANTILE * float(gains.std(ddof=1)) / len(gains) ** 0.5 if len(gains) > 1 else None
        measures[name] = {
            "before": float(old.mean()),
            "after": float(new.mean()),
            "gain": float(gains.mean()),
            "ci95": half,
        }

    return measures


def _list_chosen_parameters(chain: Chain) -> list[dict[str, Any]]:
    """Return the kind and the parameters of each step whose fit derived parameters from the data, in order."""
    steps = [step for step in chain.transforms if isinstance(step, Transform)]
    return [{"kind": step.kind} | chosen for step in steps if (chosen := step.chosen_parameters())]


def _unit_rows(vectors: FloatArray) -> FloatArray:
    """Return rows `(n, d)` L2-normalized, as a float32 array."""
    return normalized_rows(vectors, np.float32).numpy()


def _list_relevance_warnings(certificate: Certificate) -> list[str]:
    """Return warnings about a certificate's searches with known relevant documents, [] without such searches.

    One says that nDCG@10 does not rise by more than its 95 % interval; there is one for each other corpus where nDCG@10
    falls by more than its interval.
    """
    if "relevance" not in certificate:
        return []

    warnings = []
    relevance = certificate["relevance"]
    measured = relevance["ndcg_at_10"]

    if not measured["gain"] > (measured["ci95"] or 0):
        warnings.append(
            f"nDCG@10 of {relevance['queries']} held-out queries changes by {measured['gain']:+.4f} ± "
            f"{measured['ci95'] or 0:.4f}: no gain that can be told from chance"
        )

    for name, measures in relevance["out_of_domain"].items():
        measured = measures["ndcg_at_10"]
        if measured["gain"] < -(measured["ci95"] or 0):
            warnings.append(
                f"searches of other text get worse: nDCG@10 on {name} changes by {measured['gain']:+.4f} ± "
                f"{measured['ci95'] or 0:.4f}"
            )

    return warnings


def _measure_codes(
    quantizer: TransformCoding, floats: FloatArray, queries: FloatArray, decoded: FloatArray
) -> Certificate:
    """Measure the size of a chain's byte codes and the errors of scores with them.

    Args:
        quantizer: fitted.
        floats: rows as they are encoded, `(n, d)`.
        queries: the same rows as they search, `(n, d)`.
        decoded: what the codes of the same rows stand for, `(n, d)`.

    Returns:
        A dict that can be serialized as JSON, with the keys:

        - `kind`, `bytes`, `weighting`: of the quantizer.
        - `coordinates`: number of coordinates that are coded; `bits`: how many of them have how many bits.
        - `query_count`: number of queries that weighted them, 0 if the fitted rows stood for them.
        - `score_bias`, `score_variance`: mean and variance of the error of a score, None for fewer than two rows.
        - `clipped_share`: share of coordinates beyond `CLIP_DEVIATIONS` standard deviations.
    """
    bits, counts = np.unique(quantizer.layout[0].cpu().numpy(), return_counts=True)
    bias, variance = measure_score_errors(queries, floats, decoded) if len(queries) > 1 else (None, None)
    return {
        "kind": quantizer.kind,
        "bytes": quantizer.bytes,
        "weighting": quantizer.weighting,
        "coordinates": quantizer.learned_directions,
        "bits": {str(b): int(count) for b, count in zip(bits[::-1], counts[::-1], strict=True)},
        "query_count": int(quantizer.query_count),
        "score_bias": bias,
        "score_variance": variance,
        "clipped_share": quantizer.clipped_share(floats),
    }


def _map_as_queries(chain: Chain, vectors: FloatArray) -> FloatArray | None:
    """Return documents `(n, d)` mapped as the chain maps queries, None if it maps queries and documents alike.

    Steps that change queries only are left out: they were learned for queries, which these rows are not.
    """
    steps = [step for step in chain.float_steps if not step.queries_only]
    if not isinstance(chain.quantizer, TransformCoding) and not any(step.two_sided for step in steps):
        return None
    queries: FloatArray = Chain(steps, chain.normalize).transform_queries(vectors)
    return queries


def _list_clipping_warnings(certificate: Certificate) -> list[str]:
    """Return a list with one warning if the certificate's share of clipped coordinates is above `MAX_CLIPPED`.

    The list is empty otherwise.
    """
    share = certificate.get("codes", {}).get("clipped_share", 0)
    if share <= MAX_CLIPPED:
        return []
    return [f"{100 * share:.2f} % of the coded values lie beyond {CLIP_DEVIATIONS:g} standard deviations of the fit"]


def _list_constant_output_warnings(before: FloatArray, after: FloatArray) -> list[str]:
    """Return a list with one warning if some output dimensions never vary, else an empty list.

    There is no warning if the inputs explain the constant outputs, or for fewer than 2 rows. The inputs explain them if
    they have as many dimensions as the outputs, and as many constant ones or more.
    """
    constant_before, constant = (
        int((deviations <= MIN_DEVIATION * deviations.max()).sum())
        for deviations in (side.std(axis=0) for side in (before, after))
    )
    # A single row has no deviation, so all its dimensions would count as constant.
    if constant == 0 or len(after) < 2 or (before.shape[1] == after.shape[1] and constant <= constant_before):
        return []

    return [f"outputs that never vary and waste their bytes: {constant} of {after.shape[1]}"]


def _list_fit_warnings(chain: Chain, n_fit: int, n_heldout: int) -> list[str]:
    """Return warnings about steps, trainings, and too few rows for the fit or for the measures, as sentences."""
    warnings = []
    for step in chain.transforms:
        if isinstance(step, Transform):
            warnings += step.fit_warnings()
            needed = MIN_ROWS_PER_DIMENSION * step.learned_directions
            if n_fit < needed:
                warnings.append(
                    f"{n_fit} rows are few for {step.learned_directions} dimensions; "
                    f"{needed} or more give a reliable map"
                )

            if step.training_log is not None:
                warnings += step.training_log.warnings(step.kind)

    if n_heldout <= 40:  # as in `measure_geometry`
        warnings.append(f"{n_heldout} held-out rows are too few for every measure; measures that need more are null")

    return warnings
