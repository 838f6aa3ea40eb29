"""`lathe calibrate`: a function that gives the hits of any vector store the probability that they are right."""

import json
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lathe.service.cli.index_import import LazyEncoders, encode_texts, resolve_rows
from lathe.service.cli.options import (
    ENCODER,
    SOURCE,
    ProgressBar,
    build_request,
    flag,
    load_state,
    open_chains,
    take_fields,
)
from lathe.service.index.spec import CalibrateRequest
from lathe.transforms.files import make_folder, replace_synced

if TYPE_CHECKING:
    from lathe.transforms.relevance import ScoreModel

SearchedPlace = Literal["python", "pgvector", "qdrant"]

FIRST_HITS = 50
"""Number of hits of a search that the function is fitted on, of which it takes ten or more."""

LINE_CHARACTERS = 110
"""Maximum length of a line of the function's comment."""


@take_fields(CalibrateRequest, queries=flag("--queries", "SOURCE of at least 130 unjudged queries."))
def calibrate(
    source: Annotated[str, flag("--source", f"Rows that are searched: {SOURCE}")],
    *,
    fields: dict[str, Any],
    encoder: Annotated[str | None, flag("--encoder", ENCODER)] = None,
    chain: Annotated[
        str, flag("--chain", "NAME or NAME@VERSION of a chain that reduces the searched vectors.")
    ] = "none",
    place: Annotated[SearchedPlace, flag("--for", "What the function is written for.")] = "python",
    out: Annotated[Path | None, flag("--out", "Write the function to this file.")] = None,
    as_json: Annotated[bool, flag("--json", "Print JSON.")] = False,
) -> None:
    """Write a function that turns the cosines of a search's hits into the probability that each hit is right.

    It is for vectors in other stores, such as a table of pgvector or a collection of Qdrant. The rows are read, encoded
    if they are texts, and searched here as the store searches them. Judged queries let the command say how well the
    probabilities separate right from wrong hits, and from which minimum on. Indexes of Lathe calibrate themselves:
    lathe index calibrate.
    """
    import torch

    from lathe.service.index.embedded.calibration import evaluate_held_out, fit_model
    from lathe.service.index.embedded.index import EmbeddedIndex
    from lathe.service.index.embedded.indexes import acquire_index
    from lathe.service.index.embedded.record import IndexRecord
    from lathe.service.index.importing import Ids, add_rows
    from lathe.service.jobs.kinds.calibrate import encode_inputs, gather_inputs
    from lathe.training.sources.source import open_source
    from lathe.transforms.relevance import ScoreModel

    request = build_request(CalibrateRequest, fields)
    settings, _ = load_state()
    torch.set_num_threads(settings.threads)
    encoders, opened = LazyEncoders(settings), open_source(source)
    index_fields = {"chain": chain, "encoder": encoder, "text_field": "text"}
    spec, artifact, reader = resolve_rows(opened, index_fields, encoders, open_chains(write=False))
    inputs = gather_inputs(request, "calibrate", spec)

    # An index without a graph, which is searched exactly and deleted.
    with tempfile.TemporaryDirectory() as folder, ProgressBar() as progress:
        root = Path(folder) / "rows"
        make_folder(root)
        IndexRecord.create(root / "record.db", spec, artifact).close()
        lock = acquire_index(root, root.name)
        index = EmbeddedIndex(
            root.name, root, lock, settings.threads, settings.threads, lambda _, texts: encode_texts(reader, texts)
        )
        add_rows(index, opened, reader, Ids(None, None, opened.count()), "", progress, skip_zeros=True)
        progress(1.0, "encoding the queries and searching")
        encode_inputs(inputs, encoders.load(spec.encoder) if spec.encoder else None)
        model, searches, held_out = fit_model(index.generation, inputs, FIRST_HITS)
        rows = index.generation.rows.count
        index.close(snapshot=False)

    scores = ScoreModel.imitate(model, searches)
    figures, sentence = evaluate_held_out(inputs, held_out, lambda held: scores.predict_proba(held.scores))
    indexed, _ = evaluate_held_out(inputs, held_out, model.predict_proba)
    references = "its own rows" if inputs.log is None else f"{len(inputs.log):,} queries"
    summary = f"{opened.name}: {rows:,} rows calibrated with {references}. {sentence}"
    if indexed is not None:
        summary += f" In an index of Lathe, which knows the hubs of its rows, the AUROC is {indexed['auroc'][0]:.2f}."
    code = write_function(scores, place, summary)
    if out is not None:
        replace_synced(out, code.encode())
    if as_json:
        described = {"rows": rows, "kind": model.kind, "sentence": sentence, "figures": figures, "in_an_index": indexed}
        typer.echo(json.dumps(described | {"coefficients": scores.coefficients.tolist(), "function": code}, indent=1))
    else:
        typer.echo(code if out is None else summary)


def write_function(scores: "ScoreModel", place: SearchedPlace, summary: str) -> str:
    """Return the lines of Python or SQL that compute a model's probabilities, under a comment with a summary."""
    names = {"python": ["python"], "pgvector": ["pgvector"], "qdrant": ["python", "qdrant"]}[place]
    text = "".join(Path(__file__).with_name(f"probabilities_{name}.txt").read_text() for name in names)
    first, later = scores.coefficients
    mark = "-- " if place == "pgvector" else "# "
    comment = textwrap.fill(summary, LINE_CHARACTERS, initial_indent=mark, subsequent_indent=mark)
    return f"{comment}\n{text.format(first=first, later=later)}"
