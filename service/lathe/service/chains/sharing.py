"""Pushing and pulling of chains and exported models to and from repositories of the hub.

repository of a chain                                      repository of an exported model
├── manifest.json, chain.safetensors                       ├── the files of the export, such as modules.json
├── reference.safetensors  optional: distribution of rows  ├── lathe.json   the chain's metadata
└── README.md, recall.svg  the model card                  └── SHA256SUMS   digests of the files that a pull takes

Nothing that is pulled is executed or unpickled. A pull takes the files named here and leaves all others where they
are.

A model card is a README.md with the metadata that the hub reads, and a figure.
"""

import hashlib
import html
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from lathe.service.chains.hub import HubRepo, push_files, require_inner_path
from lathe.service.chains.loaded_chain import load_chain
from lathe.service.chains.names import require_name
from lathe.service.chains.registry import Registry
from lathe.service.errors import BadValueError
from lathe.training.export.folder import SHIPPED, open_staging_folder
from lathe.transforms.artifact import (
    DISTRIBUTION,
    MANIFEST,
    TENSORS,
    FitDistribution,
    Manifest,
    read_manifest,
    require_field_types,
)
from lathe.transforms.errors import ArtifactError
from lathe.transforms.files import read_json_file

CARD, DESCRIPTION, SUMS = "README.md", "lathe.json", "SHA256SUMS"
"""Names of the model card, of an export's metadata, and of the digests of its files."""

PLAIN = {".json", ".jinja", ".md", ".model", ".safetensors", ".txt", ".onnx", ".index", ".vt", ".npz", ".data", ""}
"""Suffixes of the files that a pull of an exported model takes: none of them is a program or a pickle."""

MAX_SUMS = 1_000_000
"""Maximum bytes of the file of digests."""


@dataclass(frozen=True)
class _PulledChain:
    """Outcome of pulling a chain.

    Attributes:
        new: whether a version was added; False if the same chain was stored before.
        encoder: name of the encoder that the chain is for; None without one.
    """

    name: str
    version: int
    live: bool
    new: bool
    commit: str
    encoder: str | None


def push_chain(
    registry: Registry, ref: str, repo: str, private: bool | None, license_id: str | None, include_distribution: bool
) -> str:
    """Push a version of a chain with a model card to a hub repository, and return the commit's URL.

    Args:
        registry: registry of the chain.
        ref: `name` or `name@version`.
        repo: `owner/name`.
        private: see `push_files`.
        license_id: license for the card; None states none.
        include_distribution: whether the distribution of the fitted rows is pushed too, which drift detection needs.
            It reveals their mean and covariance.

    Raises:
        ServiceError: as `push_files` does.
        UnknownNameError: if there is no such chain.
        ArtifactError: if its files are damaged.
    """
    loaded = registry.load(ref)
    distribution = _load_distribution(loaded.folder, loaded.chain.metadata) if include_distribution else None
    with tempfile.TemporaryDirectory(prefix="lathe-push-") as temporary:
        folder = Path(temporary) / "chain"
        manifest = loaded.chain.save(folder, {"name": loaded.name, "version": loaded.version}, distribution)
        files: dict[str, Path | bytes] = {path.name: path for path in folder.iterdir()}
        files[CARD] = format_chain_card(manifest, repo, license_id).encode()
        if (figure := draw_recall(manifest)) is not None:
            files[FIGURE] = figure.encode()
        return push_files(repo, files, f"Chain {loaded.ref}", private)


def push_model(folder: Path, repo: str, private: bool | None, license_id: str | None) -> str:
    """Push an exported model or chain with a model card to a hub repository, and return the commit's URL.

    Args:
        folder: folder that `lathe export` wrote.
        repo: `owner/name`.
        private: see `push_files`.
        license_id: license for the card; None states none.

    Raises:
        BadValueError: if the folder holds a file that exports do not have, or its lathe.json names no chain.
        ServiceError: as `push_files` does.
    """
    try:
        described = read_json_file(folder / DESCRIPTION)
    except ValueError as error:
        raise BadValueError(f"{DESCRIPTION} in {folder} cannot be read: {error}") from None
    if not isinstance(described, dict) or "chain" not in described:
        raise BadValueError(f"{DESCRIPTION} in {folder} is not one of an export: it names no chain")

    paths = sorted(path for path in folder.rglob("*") if path.is_file() or path.is_symlink())
    files: dict[str, Path | bytes] = {path.relative_to(folder).as_posix(): path for path in paths}
    files.pop(SUMS, None)  # a pulled folder has the digests of its old README, written again below
    for name, path in files.items():
        if isinstance(path, Path) and path.is_symlink():
            raise BadValueError(f"{name} in {folder} is a link: push the folder as lathe export wrote it")
        _require_plain(name, (folder / name).read_bytes() if name.endswith(".py") else b"")

    has_modules = "modules.json" in files  # sentence-transformers loads the folder as it is
    tags = ["lathe", "embeddings", *(["sentence-transformers", "sentence-similarity"] if has_modules else [])]
    header = _format_header(described, "sentence-transformers" if has_modules else "lathe", license_id, tags)
    card = (folder / CARD).read_text()
    if card.startswith("---\n") and card.count("---\n") > 1:  # a pulled folder's card has a YAML header
        card = card.split("---\n", 2)[2].lstrip("\n")
    usage = card.replace("path/to/this/folder", repo)
    files[CARD] = f"{header}\n{usage}".encode()
    files[SUMS] = "".join(f"{_compute_sha256(content)}  {name}\n" for name, content in sorted(files.items())).encode()
    return push_files(repo, files, f"Export of {described['chain']}", private)


def pull_chain(registry: Registry, repo: HubRepo, name: str | None, max_bytes: int) -> _PulledChain:
    """Download a chain from a hub repository, and add it to the registry as a new version, unless it has it already.

    The first version of a name goes live. The version appears when it is complete and checked. The same chain under the
    same name is not added twice.

    Args:
        registry: registry to add it to.
        repo: repository at the commit to pull.
        name: name of the chain here; None is the name it was pushed with.
        max_bytes: maximum bytes of its files.

    Raises:
        ArtifactError: if the repository holds no chain, or one whose digests, shapes or fields are wrong.
        BadValueError: if the name is not valid, or left out and missing in the manifest.
        ServiceError: as `HubRepo.download` does.
    """
    with tempfile.TemporaryDirectory(prefix="lathe-pull-") as temporary:
        folder = Path(temporary) / repo.id  # errors of an artifact name the last two parts of its path
        folder.mkdir(parents=True)
        repo.download([MANIFEST], folder, max_bytes)
        manifest = read_manifest(folder)
        require_field_types(folder, manifest, {"name": str})
        names = [TENSORS, *([DISTRIBUTION] if manifest.get("reference") else [])]
        repo.download(names, folder, max_bytes)
        chain = load_chain(folder, None)
        distribution = _load_distribution(folder, manifest)

    name = name or manifest.get("name")
    if name is None:
        raise BadValueError(f"{repo.id} does not name its chain: choose a name with --as", param="--as")
    require_name(name, param="--as")
    encoder = (manifest.get("encoder") or {}).get("name")
    # A version that differs in nothing would only take a number.
    if (known := _find_same_chain(registry, name, manifest)) is not None:
        return _PulledChain(name, known, registry.live(name) == known, False, repo.commit, encoder)
    chain.metadata = chain.metadata | {"pulled_from": {"repository": repo.id, "commit": repo.commit}}
    version, live = registry.publish(chain, name, None, distribution=distribution)
    return _PulledChain(name, version, live, True, repo.commit, encoder)


def pull_model(repo: HubRepo, to: Path, max_bytes: int) -> list[str]:
    """Download an exported model from a hub repository to a new folder, check its digests, and return the file names.

    The folder appears when it is complete and the SHA-256 digests of its files are right.

    Raises:
        BadValueError: if the repository holds no such model, a file of a kind that exports do not have, one whose
            digest is wrong, or a program other than those that Lathe ships.
        ExportError: if the folder is not empty.
        ServiceError: as `HubRepo.download` does.
    """
    if not {DESCRIPTION, SUMS} <= repo.sizes.keys():
        raise BadValueError(f"{repo.id} holds no export of Lathe: {DESCRIPTION} and {SUMS} are missing")
    with open_staging_folder(to) as staging:
        repo.download([SUMS], staging, MAX_SUMS)
        sums = _parse_sums((staging / SUMS).read_text(), repo.id)
        # Names are checked before anything is downloaded, programs again when their content is there.
        for name in sums:
            require_inner_path(name)
            if not name.endswith(".py"):
                _require_plain(name, b"")
        repo.download(sums, staging, max_bytes)
        for name, digest in sums.items():
            if _compute_sha256(staging / name) != digest:
                raise BadValueError(f"{name} of {repo.id} was truncated or altered: its SHA-256 does not match")
            if name.endswith(".py"):
                _require_plain(name, (staging / name).read_bytes())
        shutil.rmtree(staging / ".cache", ignore_errors=True)  # what the hub's client notes about its downloads
    return sorted([*sums, SUMS])


def _parse_sums(text: str, repo: str) -> Mapping[str, str]:
    digests = {}
    for line in text.splitlines():
        digest, separator, name = line.partition("  ")
        if not separator or len(digest) != 64 or not name:
            raise BadValueError(f"{SUMS} of {repo} cannot be read: {line[:80]!r}")
        digests[name] = digest
    return digests


def _require_plain(name: str, program: bytes) -> None:
    """Raise `BadValueError` for a file that is neither plain data, by its suffix, nor a program that Lathe ships."""
    path = PurePosixPath(name)
    shipped = SHIPPED / path.name
    if path.suffix == ".py" and shipped.is_file() and shipped.read_bytes() == program:
        return
    if path.suffix not in PLAIN or any(part.startswith(".") for part in path.parts):
        raise BadValueError(f"{name[:80]!r} is of a kind that exports of Lathe do not have, or a program of others")


def _compute_sha256(content: Path | bytes) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_distribution(folder: Path, manifest: Manifest) -> FitDistribution | None:
    return FitDistribution.load(folder) if manifest.get("reference") else None


def _find_same_chain(registry: Registry, name: str, manifest: Manifest) -> int | None:
    for version in reversed(registry.versions(name)):
        with suppress(ArtifactError):
            known = registry.manifest(name, version)
            if all(known.get(key) == manifest.get(key) for key in ("tensors_sha256", "steps", "normalize")):
                return version
    return None


FIGURE = "recall.svg"
"""Name of the figure's file."""

WIDTH, HEIGHT, MARGIN = 480, 300, 48
"""Size of the figure in pixels, and the margin around its axes."""

PROTOCOL = (
    "Measured on held-out rows of the corpus that the chain was fitted on. recall@10 is the share of the ten nearest "
    "neighbours by cosine among the encoder's vectors that are among the ten nearest of the chain's; rescored 4x takes "
    "the nearest 40 of the chain's and ranks them by the encoder's vectors."
)


def _format_header(metadata: Mapping[str, Any], library: str, license_id: str | None, tags: list[str]) -> str:
    """Format a model card's YAML header between lines of `---`: library, tags, license and base model.

    Args:
        metadata: manifest of the chain; its encoder's model is the base model if it has the form `owner/name`.
        library: library that loads the repository.
        license_id: license as the hub abbreviates it, such as `apache-2.0`; None states none.
        tags: tags of the card.
    """
    header: dict[str, Any] = {"library_name": library, "tags": tags}
    if license_id:
        header["license"] = license_id
    model = (metadata.get("encoder") or {}).get("model")
    if isinstance(model, str) and model.count("/") == 1 and not model.startswith((".", "/", "~")):
        header["base_model"] = model
    return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n"


def format_chain_card(metadata: Mapping[str, Any], repo: str, license_id: str | None = None) -> str:
    """Format the README of a chain for the hub in Markdown: YAML header, steps, measured recall and usage."""
    name, certificate = metadata["name"], metadata.get("certificate") or {}
    encoder = metadata.get("encoder") or {}
    steps = ", ".join(step["kind"] for step in metadata["steps"])
    sizes = f"{metadata['input_dimensions']} → {metadata['output_dimensions']} dimensions"
    of = f"vectors of `{encoder['model']}`" if encoder else "vectors that come without an encoder"
    lines = [
        _format_header(metadata, "lathe", license_id, ["lathe", "embeddings", "dimensionality-reduction"]),
        f"# {name}",
        "",
        f"A chain of transforms for {of}, fitted by Lathe: {steps}; {sizes}.",
        "",
        *_format_measurements(metadata, certificate),
        "## Use",
        "",
        "```sh",
        f"lathe pull {repo}",
        f"curl localhost:8080/embed -H 'content-type: application/json' "
        f"""-d '{{"inputs": "some text", "chain": "{name}"}}'""",
        "```",
        "",
        "The files hold numbers only: `manifest.json`, and `chain.safetensors` with its SHA-256 in the manifest.",
    ]
    return "\n".join(lines) + "\n"


def _format_measurements(metadata: Mapping[str, Any], certificate: Mapping[str, Any]) -> list[str]:
    if not certificate:
        return []
    rows = ["| texts | rows | recall@10 | rescored 4x | local Spearman |", "| --- | --- | --- | --- | --- |"]
    held_out = {**certificate, "n": certificate.get("n_heldout")}
    for label, measured in {"held out": held_out, **certificate.get("out_of_domain", {})}.items():
        measures = (measured.get(key) for key in ("recall_at_10", "recall_at_10_rescored_4x", "local_spearman"))
        cells = [label, str(measured.get("n", "")), *("" if value is None else f"{value:.3f}" for value in measures)]
        rows.append("| " + " | ".join(cells) + " |")
    bytes_ = certificate.get("bytes_per_vector") or {}
    lines = ["## Measured", "", *rows, "", PROTOCOL]
    if bytes_:
        lines += ["", f"A vector takes {bytes_['after']} bytes in place of {bytes_['before']}."]
    lines += [f"\nWarning of the fit: {warning}" for warning in certificate.get("warnings", [])]
    if _find_recall_points(metadata):
        lines += ["", f"![recall@10 by bytes of a vector]({FIGURE})"]
    return [*lines, ""]


def _find_recall_points(metadata: Mapping[str, Any]) -> list[tuple[float, float]]:
    """List points `(bytes of a vector, recall@10)` by number of dimensions, ascending, or [] for fewer than two points.

    Only a nested chain is measured at several numbers of dimensions.
    """
    certificate = metadata.get("certificate") or {}
    sizes = {int(size): measured.get("recall_at_10") for size, measured in certificate.get("sizes", {}).items()}
    after = (certificate.get("bytes_per_vector") or {}).get("after")
    if not sizes or after is None:
        return []
    full = int(metadata["output_dimensions"])
    sizes[full] = certificate.get("recall_at_10")
    points = [(after * size / full, recall) for size, recall in sorted(sizes.items()) if recall is not None]
    return points if len(points) > 1 else []


def draw_recall(metadata: Mapping[str, Any]) -> str | None:
    """Draw recall@10 against the bytes of a vector as SVG text. Returns None if fewer than two sizes were measured."""
    points = _find_recall_points(metadata)
    if not points:
        return None
    max_bytes = points[-1][0]
    x = [MARGIN + vector_bytes / max_bytes * (WIDTH - 2 * MARGIN) for vector_bytes, _ in points]
    y = [HEIGHT - MARGIN - recall * (HEIGHT - 2 * MARGIN) for _, recall in points]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    marks = [
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="4"/><text x="{a:.1f}" y="{b - 10:.1f}">{recall:.2f}</text>'
        f'<text x="{a:.1f}" y="{HEIGHT - MARGIN + 18}">{vector_bytes:.0f}</text>'
        for a, b, (vector_bytes, recall) in zip(x, y, points, strict=True)
    ]
    bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN
    title = html.escape(f"{metadata['name']}: recall@10 by bytes of a vector")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
        f'font-size="12" text-anchor="middle"><title>{title}</title><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{WIDTH / 2}" y="24">{title}</text>'
        f'<path d="M{MARGIN},{MARGIN} V{bottom} H{right}" fill="none" stroke="#888"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f6feb" stroke-width="2"/>'
        f'<g fill="#1f2328">{"".join(marks)}</g></svg>\n'
    )
