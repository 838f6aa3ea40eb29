"""`lathe export`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from service.cli.options import find_encoder, flag, registry_with_places, state
from service.errors import BadValueError
from training.encoder.spec import EncoderSpec

if TYPE_CHECKING:
    from service.settings import Settings
    from training.encoder.encoder import Encoder
    from transforms.chain import Chain

Format = Literal["sentence-transformers", "onnx", "faiss"]


def export(
    chain: Annotated[str, typer.Argument(help="NAME or NAME@VERSION")],
    to: Annotated[Path, flag("--to", "The folder to make.")],
    format_: Annotated[Format, flag("--format", "What will read it.")] = "sentence-transformers",
    encoder: Annotated[
        str | None, flag("--encoder", "Whose vectors the chain takes. [default: the one it was fitted for]")
    ] = None,
    dimensions: Annotated[int | None, flag("--dimensions", "A smaller size, where the chain is nested.", min=1)] = None,
) -> None:
    """Write a chain for other software, which needs no Lathe to use it; checked before it appears.

    sentence-transformers: encoder and chain as one model. onnx: the chain, and encoder, pooling
    and chain as one model. faiss: transforms for an IndexPreTransform.
    """
    settings, _ = state()
    registry, _ = registry_with_places(write=False)
    loaded = registry.load(chain)
    folded = loaded.chain.fold(dimensions)
    folded.metadata = loaded.chain.metadata
    if format_ == "faiss" and encoder is not None:
        raise BadValueError("a FAISS export has no encoder in it: leave --encoder out")
    if format_ == "faiss":
        from training.export.faiss_transforms import export_faiss

        exported = export_faiss(folded, to, loaded.ref)
    elif format_ == "onnx":
        from training.export.onnx_graph import export_onnx

        exported = export_onnx(folded, encoder_of(folded, settings, encoder), to, loaded.ref)
    else:
        from training.export.sentence_transformers_folder import export_sentence_transformers

        exported = export_sentence_transformers(folded, encoder_of(folded, settings, encoder), to, loaded.ref)
    typer.echo(f"{exported.folder}: {', '.join(exported.files)}")
    typer.echo(f"checked: within {exported.difference:.1e} of {loaded.ref}", err=True)


def encoder_of(chain: "Chain", settings: "Settings", name: str | None) -> "Encoder | None":
    """The encoder to export with, loaded in float32 on the CPU: the named one, else as the chain recorded it."""
    from training.encoder.encoder import Encoder

    recorded = chain.metadata.get("encoder")
    if name is not None:
        spec = find_encoder(settings, name)
    elif recorded is None:
        return None
    else:
        spec = next((s for s in settings.specs if s.name == recorded["name"]), spec_of(recorded))
    return Encoder(EncoderSpec(**(vars(spec) | {"dtype": "float32"})), "cpu")


def spec_of(recorded: dict[str, Any]) -> EncoderSpec:
    """The encoder as a chain recorded it, but never with code of the model's own."""
    fields = {name: recorded[name] for name in EncoderSpec.__dataclass_fields__ if name in recorded}
    return EncoderSpec(**(fields | {"trust_remote_code": False}))
