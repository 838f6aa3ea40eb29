"""`lathe push` and `lathe pull`: chains and exported models on the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

from lathe.service.cli.options import flag, open_chains
from lathe.service.errors import BadValueError
from lathe.transforms.files import expand_home

MAX_BYTES = 2_000_000_000
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
    max_bytes: Annotated[int, flag("--max-bytes", "Maximum bytes to download.", min=1)] = MAX_BYTES,
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
