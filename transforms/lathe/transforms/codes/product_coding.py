"""Product coding: transform coding whose bytes have codebooks learned from the rows, instead of grids."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lathe.transforms.base import whole_number
from lathe.transforms.codes.allocation import CodeLayout, lay_out_in_whole_bytes
from lathe.transforms.codes.code_decoder import CodeDecoder
from lathe.transforms.codes.transform_coding import CODEC_VERSION, TransformCoding
from lathe.transforms.errors import InputError
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import Vectors, as_tensor

CENTROIDS = 256
"""Number of centroids of a byte."""

MAX_CODEBOOK_ROWS = 65_536
"""Maximum number of rows that codebooks are learned from: 256 for each centroid; more change recall little."""

BLOCK_ROWS = 128
"""Number of rows that are compared with the centroids at a time: at 48 bytes the distances take 6 MB."""


class ProductCoding(TransformCoding):
    """Transform coding with a codebook of 256 centroids for each byte, learned by k-means.

    Mean, metric, coordinates and the allocation of bits are the same as in `TransformCoding`. The coordinates of a byte
    are then quantized together: their codebook starts as the grid of their Lloyd–Max levels and moves by k-means to
    where the rows are, in the metric of scores. It finds more neighbours than the grid at the same bytes. It needs the
    rows for the fit, not only their moments, and encodes more slowly. FAISS's `IndexPQ` searches the codes.

    Product quantization: Jégou, Douze and Schmid (2011). Starting from the allocation of a transform code, in place of
    a rotation that balances the bytes, is what differs from OPQ (Ge et al., 2013).

    Args:
        bytes: number of bytes of a code, at most the number of dimensions.
        weighting: λ, from 0 (all directions count alike) to 1 (by queries). Larger values find more of the full
            vectors' neighbours; on search tasks 0 loses least (research/codes.md).
        iterations: iterations of k-means.
        seed: seed of the choice of rows, if there are more than `MAX_CODEBOOK_ROWS`.
        restore_norm: whether decoded vectors get the norm of the fitted vectors, if these have one.
        adjust_levels: whether encoding chooses centroids a second time, so that the cosine of a vector and its decoded
            vector grows. It does so only where λ = 0 and norms are restored, and halves the rate of encoding.
        codec_version: version of the layout of the codes.

    Attributes:
        centroids: `(m, 256)`, value of each coordinate, in standard deviations, for every value of its byte.
        deviations: `(m,)`, standard deviation of each coordinate in the metric of scores.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import ProductCoding
        >>> rows = np.random.default_rng(0).normal(size=(600, 16)).astype(np.float32)
        >>> step = ProductCoding(bytes=4, iterations=5).fit(rows)
        >>> codes = step.transform(rows)
        >>> codes.dtype, codes.shape, step.score(rows[:2], codes).shape
        (dtype('uint8'), (600, 4), (2, 600))
    """

    kind = "product_codes"
    parameter_rules = {**TransformCoding.parameter_rules, "iterations": whole_number(0)}
    shapes = {**TransformCoding.shapes, "centroids": ("m", CENTROIDS), "deviations": ("m",)}
    centroids: Tensor
    deviations: Tensor
    max_adjustment_rounds = 1  # a round compares with all centroids again, which is most of the time of encoding
    weighted_adjustment_rounds = 0  # one gained nothing at 48 bytes and lost .6 points of recall at 24

    def __init__(
        self,
        bytes: int,  # noqa: A002 - the word that users write
        weighting: float = 0.0,
        iterations: int = 20,
        seed: int = 0,
        restore_norm: bool = True,
        adjust_levels: bool = True,
        codec_version: int = CODEC_VERSION,
    ) -> None:
        super().__init__(
            bytes,
            weighting,
            seed=seed,
            restore_norm=restore_norm,
            adjust_levels=adjust_levels,
            codec_version=codec_version,
        )
        self.iterations = iterations

    def _lay_out(self, bits: NDArray[np.int64], variances: NDArray[np.float64]) -> CodeLayout:
        """Lay the bits of the coordinates in the code so that no coordinate crosses a byte."""
        return lay_out_in_whole_bytes(bits, variances, self.bytes)

    def _learn_levels(self, data: Moments | Vectors, deviations: Tensor) -> None:
        """Learn the 256 centroids of each byte by k-means, and set `centroids` and `deviations`. Too few rows raise.

        K-means starts from the levels of the scalar quantizers.

        Raises:
            InputError: for moments, fewer rows than centroids, or so many bytes that none holds two coordinates.
        """
        if isinstance(data, Moments):
            raise InputError(f"{self.kind} are fitted on rows, not on moments alone: use `codes` for these")

        count = data.shape[0]
        if count < CENTROIDS:
            raise InputError(f"{self.kind} need at least {CENTROIDS} rows, one for each centroid: got {count}")
        if int(torch.bincount(self.layout[1]).max()) < 2:
            raise InputError(f"{self.kind} of {self.bytes} bytes give every coordinate a byte of its own: use `codes`")

        chosen: Any = slice(None)
        if count > MAX_CODEBOOK_ROWS:
            chosen = np.sort(np.random.default_rng(self.seed).permutation(count)[:MAX_CODEBOOK_ROWS])

        # Coordinates (m, n) in standard deviations; centroids of a byte are learned from its rows of y.
        y = self.coordinates(as_tensor(data[chosen], like=self.mean))
        self.deviations = deviations
        self.centroids = super()._build_decoder().build_level_table()

        for octet in range(self.bytes):
            in_byte = self.layout[1] == octet
            if in_byte.any():
                # Errors of scores are in the units of the metric, so distances are taken there, not in deviations.
                scale = deviations[in_byte].unsqueeze(1)
                moved = _move_centroids((y[in_byte] * scale).T, (self.centroids[in_byte] * scale).T, self.iterations)
                self.centroids[in_byte] = moved.T / scale

    def round_coordinates(self, y: Tensor) -> Tensor:
        """Return the number of the nearest centroid for each byte of coordinates `(m, n)`, uint8 `(n, bytes)`."""
        books, offsets, positions = self._arrange_codebooks()
        width, blocks = books.shape[1], []

        for block in torch.split(y, BLOCK_ROWS, dim=1):
            padded = y.new_zeros(self.bytes * width, block.shape[1])
            padded[positions] = block
            points = padded.reshape(self.bytes, width, block.shape[1]).transpose(1, 2)
            # ‖y − c‖²/2 without ‖y‖², which is the same for all centroids.
            blocks.append(torch.baddbmm(offsets, points, books, alpha=-1).argmin(2).T.to(torch.uint8))

        return torch.cat(blocks)

    def _arrange_codebooks(self) -> tuple[Tensor, Tensor, Tensor]:
        """Arrange the centroids of all bytes in tensors of equal size.

        With them, one batched product finds the nearest centroids.

        Returns:
            Centroids weighted by the variances `(bytes, k, 256)`, where k is the largest number of coordinates of a
            byte and zeros fill the others; half the squared norms of the centroids `(bytes, 1, 256)`; and the place of
            each coordinate among `bytes · k`, `(m,)`.
        """
        octets = self.layout[1]
        # Coordinate i is the r-th of its byte: it counts the earlier ones with the same byte.
        rank = (octets.unsqueeze(0) == octets.unsqueeze(1)).tril(-1).sum(1)
        width = int(rank.max()) + 1
        positions = octets * width + rank
        weighted = self.centroids * self.deviations.square().unsqueeze(1)
        books = weighted.new_zeros(self.bytes * width, CENTROIDS)
        books[positions] = weighted
        offsets = weighted.new_zeros(self.bytes, CENTROIDS).index_add_(0, octets, weighted * self.centroids / 2)
        # The code of zeros is the zero vector's: no other row gets 0 in its last byte.
        offsets[int(octets.max()), 0] = torch.inf

        return books.reshape(self.bytes, width, CENTROIDS), offsets.unsqueeze(1), positions

    def _build_decoder(self) -> "_ProductDecoder":
        return _ProductDecoder(self.mean, self.decoder, self.layout, self.norm, self.centroids, self.bytes)

    def _find_norm_factors(self, y: Tensor) -> Tensor:
        """Compute the factor `(n,)` by which decoding scaled each vector, from the decoded coordinates `(m, n)`."""
        # In the byte with the most coordinates, f·ŷ is parallel to one centroid.
        in_byte = self.layout[1] == self.layout[1].mode().values
        scale = self.deviations[in_byte].unsqueeze(1)
        centroids, points = self.centroids[in_byte] * scale, y[in_byte] * scale
        squares = centroids.square().sum(0).unsqueeze(1).clamp(min=torch.finfo(y.dtype).tiny)
        factors = (centroids.T @ points) / squares
        nearest = (factors.clamp(min=0).square() * squares).argmax(0)
        return factors.gather(0, nearest.unsqueeze(0)).squeeze(0).clamp(min=torch.finfo(y.dtype).tiny)

    def shorten(self, octets: int) -> Self:
        """Return a fitted step for shorter codes, of `octets` bytes.

        Such a code is the first `octets` bytes of this step's code.

        Raises:
            NotFittedError: before `fit`.
            InputError: if a code has fewer bytes.
        """
        shortened = super().shorten(octets)
        retained = self.layout[1] < octets
        shortened.centroids, shortened.deviations = self.centroids[retained], self.deviations[retained]
        return shortened


class _ProductDecoder(CodeDecoder):
    """Decoder of the codes of `ProductCoding`, whose levels are the centroids of the codebooks."""

    kind = "product_decoder"
    centroids: Tensor

    def __init__(
        self, mean: Tensor, decoder: Tensor, layout: Tensor, norm: Tensor, centroids: Tensor, octets: int
    ) -> None:
        super().__init__(mean, decoder, layout, norm, octets)
        self.register_buffer("centroids", centroids)

    def decode_coordinates(self, codes: Tensor) -> Tensor:
        return self.centroids.gather(1, codes.T[self.layout[1]].long())

    def build_level_table(self) -> Tensor:
        return self.centroids


def _move_centroids(points: Tensor, centroids: Tensor, iterations: int) -> Tensor:
    """Run rounds of k-means on points `(n, k)` from the centroids `(256, k)`, and return the moved centroids.

    A centroid without points moves to the point that is farthest from its own centroid.
    """
    for _ in range(iterations):
        # Half the squared distances (n, 256), less ‖p‖² / 2, which is the same for all centroids of a point.
        distances = centroids.square().sum(1) / 2 - points @ centroids.T
        nearest = distances.argmin(1)
        counts = torch.bincount(nearest, minlength=len(centroids))
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        moved = sums / counts.clamp(min=1).unsqueeze(1)
        empty = torch.nonzero(counts == 0).squeeze(1)

        if len(empty):
            errors = points.square().sum(1) / 2 + distances.gather(1, nearest.unsqueeze(1)).squeeze(1)
            # A stable sort, so that equal errors give the same centroids on every machine.
            moved[empty] = points[errors.argsort(descending=True, stable=True)[: len(empty)]]

        centroids = moved

    return centroids
