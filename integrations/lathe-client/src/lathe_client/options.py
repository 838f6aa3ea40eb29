"""Options of the calls.

Names and defaults are as in the server's fields. An option left out is not sent.
"""

from collections.abc import Sequence
from typing import Any, Literal, Required, TypedDict

InputType = Literal["query", "document"]
LongText = Literal["truncate", "error", "mean"]
OutputDtype = Literal["float", "float16", "int8", "uint8", "binary", "ubinary", "codes"]
Metric = Literal["cosine", "ip", "l2"]


class ReduceOptions(TypedDict, total=False):
    """Options of `reduce`, and those that it shares with `embed`.

    Attributes:
        dimensions: dimensions of the vectors; a nested chain can be cut to fewer.
        input_type: side of a search, `document` if left out. If a chain ends in codes, queries stay floats.
        output_dtype: encoding of the values, `float` if left out; `codes` are the bytes of a chain that ends in codes.
    """

    dimensions: int | None
    input_type: InputType | None
    output_dtype: OutputDtype | None


class EmbedOptions(ReduceOptions, total=False):
    """Options of `embed`.

    Attributes:
        model: `ENCODER`, `ENCODER+CHAIN` or `ENCODER+CHAIN@VERSION`; the server's first encoder if left out.
        chain: `NAME` or `NAME@VERSION` of a chain; takes precedence over the one in `model`.
        prompt_name: prompt of the encoder; `query` also sets `input_type` to `query`.
        normalize: whether vectors have the norm 1, as they do if left out.
        long_text: how a text that is longer than the model reads is treated; the encoder's setting if left out.
    """

    model: str | None
    chain: str | None
    prompt_name: str | None
    normalize: bool
    long_text: LongText | None


class IndexOptions(TypedDict, total=False):
    """Options of `create_index`.

    Attributes:
        chain: chain of the index.
        encoder: encoder of its texts.
        width: dimensions of the original vectors, for those of an encoder that the server does not have.
        dimensions: dimensions of the reduced vectors.
        metric: how vectors are compared; `cosine` if left out.
        m: number of links per node of the graph.
        ef_construction: size of the candidate list while the graph is built.
        originals: how original vectors are stored; `none` stores their codes alone.
        text_field: metadata field that stores the texts of items.
    """

    chain: Required[str]
    encoder: str | None
    width: int | None
    dimensions: int | None
    metric: Metric | None
    m: int | None
    ef_construction: int | None
    originals: Literal["float32", "float16", "none"] | None
    text_field: str | None


class TextsOptions(TypedDict, total=False):
    """Options of texts that an index encodes: name of their prompt, and treatment of texts that are too long."""

    prompt_name: str | None
    long_text: LongText | None


class UpsertOptions(TextsOptions, total=False):
    """Options of `upsert`.

    Attributes:
        metadata: metadata of each item, None for an item without.
    """

    metadata: Sequence[dict[str, Any] | None] | None


class SearchOptions(TextsOptions, total=False):
    """Options of `search`.

    Attributes:
        k: number of hits of each query; 10 if left out.
        ef: size of the graph's candidate list.
        rescore: rank this many times k candidates by the original vectors.
        filter: condition on the metadata, such as `{"year": {"gte": 2000}}`.
        encoder: encoder of the queries while the index moves to another one.
        min_probability: leave out hits that are less probably right; the index must be calibrated.
    """

    k: int | None
    ef: int | None
    rescore: float | None
    filter: dict[str, Any] | None
    encoder: str | None
    min_probability: float | None
