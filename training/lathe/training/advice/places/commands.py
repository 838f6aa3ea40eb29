"""Commands that create, fill and search a place with vectors in a form, as lines to paste into a terminal.

Each place has a template in `snippets`, of shell and Python; that of pgvector is shell and SQL.
"""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from lathe.training.advice.places.place import Candidate
from lathe.training.advice.places.recall import K
from lathe.training.advice.request import Metric, PlaceName


@dataclass(frozen=True)
class NamedSource:
    """A source of rows as commands name it.

    Attributes:
        name: path or name.
        texts: whether it holds texts.
        encoder: encoder of the texts; None for the default one.
        chain: name under which the caller fits the chain; None lets the lines fit one, by a name that says what it is.
    """

    name: str = "vectors.npy"
    texts: bool = False
    encoder: str | None = None
    chain: str | None = None


def write_commands(
    place: PlaceName, candidate: Candidate, multiple: int, dimensions: int, metric: Metric, source: NamedSource
) -> tuple[str, ...]:
    """Write the lines that set up a place with a candidate.

    Args:
        place: name of the place.
        candidate: form to search, and what stands beside it.
        multiple: number of candidates of a search that the full vectors rank, as a multiple of ten; 1 ranks none.
        dimensions: dimensions of the full vectors.
        metric: how vectors are compared.
        source: the vectors or texts.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "snippets"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    values = {
        "place": place,
        "form": candidate.form,
        "setting": candidate.setting,
        "chain": bool(candidate.form.chain_steps),
        # Such as pca192 or codes96: another decision must not search through this one's chain.
        "name": source.chain or re.sub(r"\W", "", candidate.form.chain_steps.partition(",")[0]),
        "fitted": source.chain is not None,
        "multiple": multiple,
        "count": K * multiple,
        "d": dimensions,
        "metric": metric,
        "texts": source.texts,
        "source": shlex.quote(source.name),
        "encoder": f" --encoder {shlex.quote(source.encoder)}" if source.encoder else "",
        # A source of vectors in another form than .npy has to be written as one first.
        "vectors": source.name if source.name.endswith(".npy") and not source.texts else "vectors.npy",
    }
    templates = [f"{place}.j2"] if place == "pgvector" else ["prepare.j2", f"{place}.j2"]
    return tuple(line for name in templates for line in environment.get_template(name).render(values).splitlines())
