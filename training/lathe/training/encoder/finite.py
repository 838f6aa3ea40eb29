"""Check that an encoder's vectors are finite.

NaN and inf are errors of their texts, never vectors.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.spec import EncoderSpec
from lathe.training.errors import NotFiniteError


def require_finite(
    vectors: NDArray[np.float32], spec: EncoderSpec, positions: Sequence[int] | None = None
) -> NDArray[np.float32]:
    """Check that all numbers in vectors `(n, d)` are finite, and return the vectors unchanged.

    Args:
        vectors: output of the encoder.
        spec: spec of the encoder, with the dtype in use, for the message.
        positions: positions of the texts in the user's input, for the message; None counts them from 0.

    Raises:
        NotFiniteError: naming the first text whose vector holds NaN or inf.
    """
    finite = np.isfinite(vectors).all(axis=1)
    if finite.all():
        return vectors

    row = int((~finite).argmax())
    advice = "; float16 overflows beyond 65,504: set the encoder's dtype to bfloat16 or float32"
    raise NotFiniteError(
        f"{spec.name} gives NaN or inf for this text in {spec.dtype}{advice if spec.dtype == 'float16' else ''}",
        row if positions is None else positions[row],
    )
