"""`lathe chains`: what there is, and which version is live."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.cli.options import flag, numbers, registry_with_places
from service.errors import BadValueError
from transforms.errors import ArtifactError

if TYPE_CHECKING:
    from service.places import Places

app = typer.Typer(help="List, show, promote, roll back and delete chains.", no_args_is_help=True, rich_markup_mode=None)

Json = Annotated[bool, flag("--json", "Print JSON.")]


@app.command("list")
def list_chains(as_json: Json = False) -> None:
    """All chains with their live version and its figures."""
    registry, _ = registry_with_places(write=False)
    described = [registry.describe(name) for name in registry.names()]
    if as_json:
        typer.echo(json.dumps(described, indent=1))
        return
    typer.echo(f"{'chain':20}{'live':>6}{'versions':>10}{'sizes':>14}{'recall@10':>11}{'foreign':>9}  steps")
    for chain in described:
        certificate = chain.get("certificate") or {}
        foreign = [corpus["recall_at_10"] for corpus in certificate.get("foreign", {}).values()]
        figures = [certificate.get("recall_at_10"), foreign[0] if foreign else None]
        numbers = [f"{figure:.3f}" if figure is not None else "–" for figure in figures]
        sizes = f"{chain.get('input_dimensions', '–')}→{chain.get('output_dimensions', '–')}"
        steps = ",".join(step["kind"] for step in chain.get("steps", [])) or chain.get("error", "")
        typer.echo(
            f"{chain['name']:20}{chain['live'] or '–':>6}{len(chain['versions']):>10}{sizes:>14}"
            f"{numbers[0]:>11}{numbers[1]:>9}  {steps}"
        )


@app.command()
def show(chain: Annotated[str, typer.Argument(help="NAME or NAME@VERSION")]) -> None:
    """Steps, provenance and certificate of a chain, as JSON."""
    registry, _ = registry_with_places(write=False)
    described = registry.describe(chain)
    versions = [{"version": v["version"], "state": v["state"]} for v in described["versions"]]
    typer.echo(json.dumps(described | {"versions": versions}, indent=1))
    if described["state"] == "corrupt":
        raise ArtifactError(str(described["error"]))


@app.command()
def promote(
    chain: Annotated[str, typer.Argument(help="NAME@VERSION")],
    gate: Annotated[
        list[str] | None, flag("--gate", "MEASURE=VALUE the certificate must reach, beside the gates of the fit.")
    ] = None,
    force: Annotated[bool, flag("--force", "Promote it although gates do not hold.")] = False,
) -> None:
    """Make a version live, if its certificate passes its gates; what a server shadows is not known here."""
    from service.gates import promote_through_gates

    _, places = registry_with_places(write=True)
    name, version = versioned(chain)
    pointer = promote_through_gates(places, name, version, numbers(gate, "--gate"), force)
    forced = f", promoted past {', '.join(pointer.past)}" if pointer.past else ""
    typer.echo(f"{name}@{version} is live{forced}")


@app.command()
def rollback(name: Annotated[str, typer.Argument(help="NAME")]) -> None:
    """Make the version live that was live before."""
    _, places = registry_with_places(write=True)
    typer.echo(f"{name}@{places.rollback(name).live} is live")


@app.command()
def delete(chain: Annotated[str, typer.Argument(help="NAME@VERSION")]) -> None:
    """Remove a version for good."""
    registry, _ = registry_with_places(write=True)
    name, version = versioned(chain)
    registry.delete(name, version)
    typer.echo(f"{name}@{version} is gone")


@app.command("import")
def import_chains(folder: Annotated[Path, typer.Argument(help="Another state folder")]) -> None:
    """Take over the chains of another state folder, for instance into the Redis that replicas are to share.

    Which chain answers which size comes with them, where nothing here answers that size yet.
    """
    from service.home import Home
    from service.places import Places
    from service.registry import Registry

    home = Home(folder.expanduser())
    source = Registry(home.chains)
    if not source.names():
        raise BadValueError(f"{folder} holds no chains: name a state folder, such as ~/.lathe")
    given = Places(home.places, source).read()
    registry, places = registry_with_places(write=True)
    taken = [name for name in source.names() if registry.adopt(name, source)]
    for name in source.names():
        words = f"{len(source.versions(name))} versions" if name in taken else "left alone, the name is in use here"
        typer.echo(f"{name}: {words}")
    for encoder, theirs in given.items():
        already = places.read().get(encoder, {})
        for place, ref in theirs.items():
            typer.echo(f"{sizes_of(place)} of encoder {encoder[:12]}: {adopted(places, already, encoder, place, ref)}")
    for name in taken:  # only now: what was given by hand comes first
        places.take_empty(name)


def adopted(places: "Places", already: dict[str, str], encoder: str, place: str, ref: str) -> str:
    """Take over a place, and say who has it."""
    occupant = places.adopt(encoder, place, ref)
    if occupant is None:
        return f"left out, {ref} here is another chain or does not answer it"
    if occupant != ref:
        return f"left alone, {occupant} has it here"
    return f"{ref}, as before" if already.get(place) == ref else ref


def sizes_of(place: str) -> str:
    """A place in words."""
    from service.places import NESTED

    return "sizes without a chain of their own" if place == NESTED else f"dimensions {place}"


def versioned(chain: str) -> tuple[str, int]:
    """Name and version.

    Raises:
        BadValueError: if no version is named.
    """
    from service.names import split_ref

    name, version = split_ref(chain)
    if version is None:
        raise BadValueError(f"name a version, such as {name}@1")
    return name, version
