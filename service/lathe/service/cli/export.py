"""`lathe export`: chains in the formats of other software; `lathe push` and `lathe pull`: on the Hugging Face Hub."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from lathe.service.cli.options import find_encoder, flag, load_state, open_chains
from lathe.service.errors import BadValueError
from lathe.training.encoder.spec import EncoderSpec
from lathe.training.export.servers import Reader
from lathe.transforms.files import expand_home

if TYPE_CHECKING:
    from lathe.service.chains.loaded_chain import LoadedChain
    from lathe.service.settings import Settings
    from lathe.training.encoder.encoder import Encoder
    from lathe.transforms.chain import Chain


Format = Literal["sentence-transformers", "onnx", "faiss", "numpy"]
Side = Literal["query", "document"]


def export(
    chain: Annotated[str, typer.Argument(help="NAME or NAME@VERSION")],
    to: Annotated[Path, flag("--to", "Folder to create.")],
    format_: Annotated[Format, flag("--format", "Software that will read it.")] = "sentence-transformers",
    encoder: Annotated[
        str | None,
        flag("--encoder", "Encoder of the vectors that the chain takes. [default: the one it was fitted for]"),
    ] = None,
    dimensions: Annotated[int | None, flag("--dimensions", "Fewer dimensions, if the chain is nested.", min=1)] = None,
    reader: Annotated[
        Reader | None,
        typer.Option("--for", help="Software that must give the same vectors as sentence-transformers; any is all."),
    ] = None,
    side: Annotated[
        Side | None,
        typer.Option(help="Export for queries or for documents, for a chain that maps the two differently."),
    ] = None,
) -> None:
    """Write a chain for use by other software without Lathe.

    The export is checked before its folder appears.

    sentence-transformers: encoder and chain as one model, which Text Embeddings Inference and vLLM read too; --for
    refuses a chain for which they would give other vectors. onnx: the chain alone, and encoder, pooling and chain as
    one model. faiss: transforms for an IndexPreTransform, and for codes the index that searches them. numpy: for chains
    that end in codes, one file that encodes, decodes and scores. A chain that maps queries otherwise than documents is
    exported for queries or for documents, one at a time.
    """
    settings, _ = load_state()
    registry = open_chains(write=False)
    loaded = registry.load(chain)
    folded = loaded.chain.fold(dimensions, side=_require_side(loaded, side) or "document")
    folded.metadata = loaded.chain.metadata | ({} if side is None else {"side": side})
    if format_ in ("faiss", "numpy") and encoder is not None:
        raise BadValueError(f"an export of format {format_} has no encoder in it: leave --encoder out")
    if reader is not None and format_ != "sentence-transformers":
        raise BadValueError(f"--for chooses what reads an export of format sentence-transformers, not {format_}")
    if format_ == "faiss":
        from lathe.training.export.faiss_transforms import export_faiss

        exported = export_faiss(folded, to, loaded.ref)
    elif format_ == "numpy":
        from lathe.training.export.numpy_codec import export_numpy

        exported = export_numpy(folded, to, loaded.ref)
    elif format_ == "onnx":
        from lathe.training.export.onnx_graph import export_onnx

        exported = export_onnx(folded, _load_export_encoder(folded, settings, encoder), to, loaded.ref)
    else:
        from lathe.training.export.sentence_transformers_folder import export_sentence_transformers

        exported = export_sentence_transformers(
            folded, _load_export_encoder(folded, settings, encoder), to, loaded.ref, reader or "sentence-transformers"
        )
    typer.echo(f"{exported.folder}: {', '.join(exported.files)}")
    typer.echo(f"checked: within {exported.difference:.1e} of {loaded.ref}", err=True)


def _require_side(loaded: "LoadedChain", side: Side | None) -> Side | None:
    """Return `side` (query or document) if the chain can be exported for it. None is for a chain that maps both alike.

    Raises:
        BadValueError: if a side is missing or not needed, or the documents end in codes, whose export would map
            queries as documents.
    """
    chain = loaded.chain
    if not chain.two_sided and side is not None:
        raise BadValueError(f"{loaded.ref} maps queries and documents alike: leave --side out", param="side")
    if chain.two_sided and side is None:
        raise BadValueError(
            f"{loaded.ref} maps queries otherwise than documents, and what reads an export cannot tell them apart: "
            "export each for itself, with --side query and --side document",
            param="side",
        )
    if chain.two_sided and side == "document" and chain.quantizer is not None:
        raise BadValueError(
            f"{loaded.ref} ends in {chain.quantizer.kind}: an export of its documents would map the queries that "
            "search them as documents too; Lathe serves such a chain, but cannot export it",
            param="side",
        )
    return side


def _load_export_encoder(chain: "Chain", settings: "Settings", name: str | None) -> "Encoder | None":
    """Load the encoder to export with a chain, in float32 on the CPU: the named one, else the one it was fitted for.

    Returns None if none is named and the chain was fitted without one.
    """
    from lathe.training.encoder.encoder import Encoder

    recorded = chain.metadata.get("encoder")
    if name is not None:
        spec = find_encoder(settings, name)
    elif recorded is None:
        return None
    else:
        spec = settings.find_encoder_spec(recorded["name"]) or _build_recorded_spec(recorded)
    if spec.upstream is not None:
        raise BadValueError(
            f"{spec.name} is behind an embeddings API, which no export can hold: export the chain alone, "
            "--format faiss or numpy, or onnx with an encoder that is loaded here"
        )
    return Encoder(replace(spec, dtype="float32"), "cpu")


def _build_recorded_spec(recorded: dict[str, Any]) -> EncoderSpec:
    """Return the spec of the encoder that a chain's manifest records. It never runs the model's own code."""
    if recorded.get("upstream"):
        raise BadValueError(
            f"the chain was fitted for {recorded['name']}, which is behind an embeddings API and not in the settings"
        )
    # The manifest may come from the hub: it must not make this process run code of a model.
    fields = {name: recorded[name] for name in EncoderSpec.__dataclass_fields__ if name in recorded}
    return EncoderSpec(**(fields | recorded.get("given", {}) | {"trust_remote_code": False}))


MAX_DOWNLOAD_BYTES = 2_000_000_000
"""Default of the maximum bytes that a pull downloads."""

Repo = Annotated[str, typer.Argument(help="Repository of the hub: OWNER/NAME")]


def push(
    name: Annotated[str, typer.Argument(help="NAME or NAME@VERSION of a chain, or a folder that `lathe export` wrote")],
    repo: Repo,
    private: Annotated[bool, flag("--private", "Make the repository private, if it is created.")] = False,
    license_: Annotated[
        str | None, flag("--license", "License for the model card, such as apache-2.0. [default: none is stated]")
    ] = None,
    statistics: Annotated[
        bool,
        flag("--statistics", "Push mean and covariance of the fitted rows too, for detecting drift."),
    ] = False,
) -> None:
    """Push a chain or an exported model to the Hugging Face Hub, with a model card made from its certificate.

    HF_TOKEN holds a token that may write there. Pushing the same again changes nothing.
    """
    from lathe.service.chains.sharing import DESCRIPTION, push_chain, push_model

    folder = expand_home(name)
    if (folder / DESCRIPTION).is_file():
        if statistics:
            raise BadValueError("--statistics is for chains: an export holds none")
        typer.echo(push_model(folder, repo, private or None, license_))
        return
    registry = open_chains(write=False)
    typer.echo(push_chain(registry, name, repo, private or None, license_, statistics))


def pull(
    repo: Repo,
    as_: Annotated[
        str | None, typer.Option("--as", help="Name of the chain here. [default: the one it was pushed with]")
    ] = None,
    to: Annotated[Path | None, flag("--to", "Folder to create, for a repository that holds an export.")] = None,
    revision: Annotated[
        str | None, flag("--revision", "Branch, tag or commit. [default: the repository's default branch]")
    ] = None,
    max_bytes: Annotated[int, flag("--max-bytes", "Maximum bytes to download.", min=1)] = MAX_DOWNLOAD_BYTES,
) -> None:
    """Pull a chain from the Hugging Face Hub as a new version, or an exported model into a folder.

    Digests are checked before anything appears here; pickles and programs of others are refused. HF_TOKEN holds a token
    for private repositories.
    """
    from lathe.service.chains.hub import HubRepo
    from lathe.service.chains.sharing import DESCRIPTION, pull_chain, pull_model
    from lathe.transforms.artifact import MANIFEST

    hub_repo = HubRepo.open(repo, revision)
    if DESCRIPTION in hub_repo.sizes and MANIFEST not in hub_repo.sizes:
        if to is None or as_ is not None:
            raise BadValueError(f"{repo} holds an exported model: name the folder for it with --to, and no --as")
        files = pull_model(hub_repo, to, max_bytes)
        typer.echo(f"{to}: {', '.join(files)}")
        typer.echo(f"pulled from {repo}, commit {hub_repo.commit}", err=True)
        return
    if to is not None:
        raise BadValueError(f"{repo} holds no exported model: leave --to out")
    if MANIFEST not in hub_repo.sizes:
        raise BadValueError(f"{repo} holds no chain of Lathe: {MANIFEST} is missing")
    registry = open_chains(write=True)
    pulled = pull_chain(registry, hub_repo, as_, max_bytes)
    ref = f"{pulled.name}@{pulled.version}"
    state = "live" if pulled.live else f"not live, which `lathe chains promote {ref}` changes"
    typer.echo(f"{ref}: {state}" if pulled.new else f"{ref} is the same chain already: {state}")
    encoder_note = f", for the encoder {pulled.encoder}" if pulled.encoder else ""
    typer.echo(f"pulled from {repo}, commit {pulled.commit}{encoder_note}", err=True)
