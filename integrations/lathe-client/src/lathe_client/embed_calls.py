"""Calls that answer vectors: embedding of texts, and reduction of vectors."""

import io
from collections.abc import Sequence

import httpx2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from lathe_client.batches import as_rows, list_texts, split_rows, split_texts
from lathe_client.calls import Call, build_json_call, select_fields
from lathe_client.embeddings import Embeddings
from lathe_client.options import EmbedOptions, ReduceOptions

NPY = "application/x-npy"


def build_embed_calls(texts: str | Sequence[str], batch_size: int, options: EmbedOptions) -> list[Call[Embeddings]]:
    """Return the calls that embed texts, in order, with at most `batch_size` texts each.

    Raises:
        TypeError: for an unknown option.
        ValueError: if there are no texts.
    """
    listed = list_texts(texts)
    fields = {"output_dtype": "float"} | select_fields(options, EmbedOptions)
    return [
        build_json_call("POST", "/embed", {"inputs": listed[part]} | fields, _read_embeddings, accept=NPY)
        for part in split_texts(listed, batch_size)
    ]


def build_reduce_calls(vectors: ArrayLike, chain: str, options: ReduceOptions) -> list[Call[Embeddings]]:
    """Return the calls that reduce vectors `(n, d)` by a chain of transforms, in order.

    Raises:
        TypeError: for an unknown option.
        ValueError: if the vectors do not have two dimensions, or there are none.
    """
    rows = as_rows(vectors)
    fields = {"chain": chain, "output_dtype": "float"} | select_fields(options, ReduceOptions)
    query = {name: str(value) for name, value in fields.items()}
    headers = {"accept": NPY, "content-type": NPY}
    return [
        Call("POST", "/reduce", _read_embeddings, _dump_npy(rows[part]), headers, query) for part in split_rows(rows)
    ]


def _dump_npy(rows: NDArray[np.float32]) -> bytes:
    """Return the bytes of a .npy file that holds an array."""
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def _read_embeddings(response: httpx2.Response) -> Embeddings:
    """Return the vectors in the .npy body of a response, with the space id, chain and token counts in its headers."""
    headers = response.headers
    tokens, cut = headers.get("x-tokens"), headers.get("x-tokens-cut")
    return Embeddings(
        np.lib.format.read_array(io.BytesIO(response.content), allow_pickle=False),
        headers["x-space-id"],
        headers["x-chain"],
        headers["x-input-type"],
        headers["x-output-dtype"],
        None if tokens is None else int(tokens),
        None if cut is None else int(cut),
    )
