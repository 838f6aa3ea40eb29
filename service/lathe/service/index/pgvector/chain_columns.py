"""Comments of columns that hold a chain's outputs, and the check that pgvector can search them."""

from lathe.service.errors import BadValueError
from lathe.service.index.pgvector.column_types import VectorType
from lathe.service.index.spec import Metric
from lathe.transforms.codes import Binary, Quantizer


def describe_space(space_id: str, chain: str, column_type: VectorType) -> str:
    """Return the comment of a column: the space of its vectors, and the chain that made them."""
    what = "signs of vectors" if column_type == "bit" else "vectors"
    return f"{what} in the space {space_id}, chain {chain} (written by lathe)"


def require_searchable(chain: str, quantizer: Quantizer | None, column_type: VectorType, metric: Metric) -> None:
    """Raise `BadValueError` if pgvector cannot search the outputs of a chain in a column of this type."""
    if quantizer is not None and not (isinstance(quantizer, Binary) and column_type == "bit"):
        advice = "--column-type bit can" if isinstance(quantizer, Binary) else "take a chain without one"
        raise BadValueError(
            f"the chain {chain} ends in a quantizer ({quantizer.kind}), whose codes pgvector cannot compare: {advice}",
            param="chain",
        )
    if column_type == "bit" and metric != "cosine":
        raise BadValueError(f"signs tell only directions: a column of type bit needs cosine, not {metric}")
