"""Model card of a chain on the hub: README.md with the metadata that the hub reads, and a figure."""

import html
from collections.abc import Mapping
from typing import Any

import yaml

FIGURE = "recall.svg"
"""Name of the figure's file."""

WIDTH, HEIGHT, MARGIN = 480, 300, 48
"""Size of the figure in pixels, and the margin around its axes."""

PROTOCOL = (
    "Measured on held-out rows of the corpus that the chain was fitted on. recall@10 is the share of the ten nearest "
    "neighbours by cosine among the encoder's vectors that are among the ten nearest of the chain's; rescored 4x takes "
    "the nearest 40 of the chain's and ranks them by the encoder's vectors."
)


def format_header(metadata: Mapping[str, Any], library: str, license_id: str | None, tags: list[str]) -> str:
    """Return a model card's YAML header between lines of `---`: library, tags, license and base model.

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
    """Return the README of a chain for the hub in Markdown: YAML header, steps, measured figures and usage."""
    name, certificate = metadata["name"], metadata.get("certificate") or {}
    encoder = metadata.get("encoder") or {}
    steps = ", ".join(step["kind"] for step in metadata["steps"])
    sizes = f"{metadata['input_dimensions']} → {metadata['output_dimensions']} dimensions"
    of = f"vectors of `{encoder['model']}`" if encoder else "vectors that come without an encoder"
    lines = [
        format_header(metadata, "lathe", license_id, ["lathe", "embeddings", "dimensionality-reduction"]),
        f"# {name}",
        "",
        f"A chain of transforms for {of}, fitted by Lathe: {steps}; {sizes}.",
        "",
        *_format_figures(metadata, certificate),
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


def _format_figures(metadata: Mapping[str, Any], certificate: Mapping[str, Any]) -> list[str]:
    """Return the Markdown lines of the card's "Measured" section, or none if the chain has no certificate."""
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
    if _find_points(metadata):
        lines += ["", f"![recall@10 by bytes of a vector]({FIGURE})"]
    return [*lines, ""]


def _find_points(metadata: Mapping[str, Any]) -> list[tuple[float, float]]:
    """Return the points `(bytes of a vector, recall@10)`, one for each measured number of dimensions, ascending.

    The list is empty unless there are two. Only a nested chain is measured at several numbers of dimensions.
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
    """Draw recall@10 against the bytes of a vector as SVG text. None if fewer than two sizes were measured."""
    points = _find_points(metadata)
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
