"""`lathe fit`: fitting and certification of chains."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from lathe.service.cli.options import (
    ENCODER,
    SERVE_DIMENSIONS,
    SOURCE,
    AddressOption,
    EngineOption,
    ProgressBar,
    WorkersOption,
    build_request,
    describe_size_routes,
    flag,
    load_encoder,
    open_engine,
    open_publish_context,
    take_fields,
)
from lathe.service.errors import BadValueError
from lathe.training.fitting.requests import NewFit
from lathe.training.reporting.text import MISSING, align_columns
from lathe.transforms.kinds import KINDS

MEASURES = ("local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress")
"""Measures of a certificate that each corpus has."""


@take_fields(
    NewFit,
    source=SOURCE,
    steps=f"Such as r2,geopres:128 or r2,geopres:128,nested=true. Kinds: {', '.join(KINDS)}.",
    encoder=ENCODER,
    gates=flag("--gate", "MEASURE=VALUE the certificate must reach, such as local_spearman=0.9. Repeatable."),
    serve_dimensions=SERVE_DIMENSIONS,
    transform=None,
    pairs="FILE of texts with the fields query and document, or FILE#QUERY,DOCUMENT: a relevant document of each "
    "query, for query_adapter. A fifth of the queries certifies the chain.",
    test_pairs="Such a file of other queries that certifies the chain, with any steps.",
    targets="FILE.npy, .parquet#COLUMN, .jsonl#FIELD: target vector of each row, for steps fitted on pairs.",
)
def fit(
    fields: dict[str, Any],
    transform: Annotated[Path | None, flag("--transform", "Write the source's transformed vectors: OUT.npy")] = None,
    engine: EngineOption = "local",
    address: AddressOption = None,
    workers: WorkersOption = None,
    as_json: Annotated[bool, flag("--json", "Print the result as JSON.")] = False,
) -> None:
    """Fit a chain on a source, certify it on held-out and out-of-domain text, and register it.

    A running server serves it at once. If a fit was stopped, the same command continues: encoded rows are not encoded
    again. For vectors (.npy), name the encoder that made them with --encoder. Without it, the chain takes any vectors
    of their dimensions and no texts, since nothing says which encoder fits it.
    """
    from lathe.service.publishing.fits import run_fit
    from lathe.training.sources.source import open_source
    from lathe.transforms.chain import parse_steps

    if not {"steps", "bytes"} & fields.keys():
        raise BadValueError("give --steps, --bytes or both")
    if "steps" in fields:
        fields["steps"] = [step.spec() for step in parse_steps(fields["steps"])]
    request = build_request(NewFit, fields | {"transform": transform is not None})
    request.check()

    context = open_publish_context()
    settings = context.settings
    has_texts = open_source(request.source.location, request.bad_shards).kind() == "texts"
    with (
        open_engine(engine, address, workers, settings) as opened,
        ProgressBar() as progress,
    ):  # fails at once if there is no cluster
        result = run_fit(
            request,
            context,
            progress,
            encoder=load_encoder(settings, request.encoder) if has_texts or request.encoder else None,
            target_encoder=load_encoder(settings, request.target_encoder) if request.target_encoder else None,
            engine=opened,
            vectors_to=transform,
        )
    typer.echo(json.dumps(result, indent=1) if as_json else format_fit_result(result))


def format_fit_result(result: dict[str, Any]) -> str:
    """Return a fit's result as text: tables of measures, warnings, whether the chain is live, and how to roll back."""
    certificate = result["certificate"]
    lines = [
        f"{result['chain']} fitted on {certificate['n_fit']:,} rows, measured on {certificate['n_heldout']:,} held out",
        "",
        align_columns(_build_certificate_rows(certificate)),
    ]
    if codes := certificate.get("codes"):
        if trials := _build_trial_rows(codes):
            lines += ["", align_columns(trials)]
        lines += [f"Not tried: {name}, because {reason}." for name, reason in codes["not_tried"].items()]
    lines += ["", *(f"Warning: {warning}" for warning in certificate["warnings"])]
    if result["failed_gates"]:
        lines.append(f"Not live: it fails {', '.join(result['failed_gates'])}.")
    elif result["promoted"]:
        unserved = "Requests that name it get it; those for its dimensions do with --serve-dimensions."
        routes = result["size_routes"]
        lines.append(f"It is live. {describe_size_routes(routes) if routes else unserved}")
    else:
        lines.append(f"It is not live: lathe chains promote {result['chain']}")
    lines.append(f"To roll back: lathe chains delete {result['chain']}")
    return "\n".join(lines)


def _build_certificate_rows(certificate: dict[str, Any]) -> list[list[str]]:
    """Return a table of a certificate's measures, with a column for held-out rows and for each out-of-domain corpus.

    Some measures are known of held-out rows alone, such as the recall at smaller sizes.
    """
    corpora = certificate["out_of_domain"]
    rows = [["", "held out", *corpora]]
    for measure in MEASURES:
        rows.append([measure, *(_format_measure(measured[measure]) for measured in (certificate, *corpora.values()))])
    for dimensions, measured in certificate.get("sizes", {}).items():
        rows.append([f"recall_at_10, cut to {dimensions}", _format_measure(measured["recall_at_10"])])
    for measure, value in certificate.get("alignment", {}).items():
        rows.append([f"alignment {measure}", _format_measure(value)])
    rows += _build_relevance_rows(certificate.get("relevance"))
    for chosen in certificate.get("chosen", []):
        rows += [[f"{chosen['kind']} {name}", _format_measure(v)] for name, v in chosen.items() if name != "kind"]
    for measure in ("mean_norm", "isoscore", "bytes_per_vector"):
        before, after = certificate[measure]["before"], certificate[measure]["after"]
        rows.append([measure, f"{_format_measure(before)} → {_format_measure(after)}"])
    if (codes := certificate.get("codes")) is not None:
        rows.append(["codes", f"{codes['kind']}, weighting {codes['weighting']:g} by {codes['chosen_by']}"])
    return rows


def _build_relevance_rows(relevance: dict[str, Any] | None) -> list[list[str]]:
    if relevance is None:
        return []
    searches = {f"{relevance['queries']:,} queries": relevance}
    searches |= {f"halves of {name}": gains for name, gains in relevance["out_of_domain"].items()}
    return [
        [
            f"{measure}, {name}",
            f"{_format_measure(gains[measure]['before'])} → {_format_measure(gains[measure]['after'])}",
        ]
        + [f"{gains[measure]['gain']:+.4f} ± {_format_measure(gains[measure]['ci95'])}"]
        for name, gains in searches.items()
        for measure in ("ndcg_at_10", "recall_at_10")
    ]


def _build_trial_rows(codes: dict[str, Any]) -> list[list[str]]:
    """Return a table of the quantizers that a fit tried, with the measure it chose by and the gain over another."""
    header = ["codes tried", codes["chosen_by"], "ahead", "±", "compared with", "rows"]
    rows = []
    for trial in codes["tried"]:
        name = f"{trial['kind']}, weighting {trial['weighting']:g}"
        name += f", {trial['bits']} bit each" if trial.get("bits") else ""
        numbers = [f"{trial['retrieval']:.2f}", f"{trial['ahead']:+.2f}", f"{trial['ci95']:.2f}"]
        against = "first row" if trial["kind"] == codes["tried"][0]["kind"] else "chosen row above"
        rows.append([name, *numbers, against, f"{trial['rows']:,}"])
    return [header, *rows] if rows else []


def _format_measure(measure: float | None) -> str:
    if measure is None:
        return MISSING
    return str(measure) if isinstance(measure, int) else f"{measure:.4f}"
