"""Decoding of the byte codes of `TransformCoding`, and scoring of queries against these codes.

A vector x `(d,)` is encoded as m coordinates y = encoder · (x − μ), and each coordinate is rounded to one of 2^bits
levels. The code stores the numbers of the levels. Decoding looks up the levels ŷ `(m,)`, and returns
μ + f · Σᵢ ŷᵢ · decoderᵢ, where f restores the norm of the fitted vectors (see `CodeDecoder`).

Layout of a code: coordinate i takes `bits[i]` bits, from bit `shifts[i]` of byte `octets[i]`, the lowest bit first. In
most codes a byte holds whole coordinates, perhaps with gaps. In others (`whole_bytes` is false) coordinates follow one
another without gaps, and may continue in the next byte:

    byte   1                0
    bit    7 6 5 4 3 2 1 0  7 6 5 4 3 2 1 0
           . . d d c c c b  b b b b b a a a      bits 3 6 3 2; octets 0 0 1 1; shifts 0 3 1 4
"""

from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import Map
from lathe.transforms.codes.allocation import BYTE
from lathe.transforms.codes.lloyd_max import MAX_BITS, build_normal_quantizer


class CodeDecoder(Map):
    """Decoder of the byte codes of `TransformCoding`, μ + f·Σᵢ ŷᵢ·decoderᵢ.

    ŷᵢ is the quantized value of coordinate i, and f the factor that restores the norm of the fitted vectors. A code of
    zeros becomes the zero vector.

    Args:
        mean: μ, the mean of the fitted vectors, `(d,)`.
        decoder: the vector that one standard deviation of each coordinate adds to the decoded vector, `(m, d)`.
        layout: bits, octets and shifts of the coordinates, `(3, m)`, as above.
        norm: the norm that all fitted vectors had, `(1,)`; 0 if their norms varied, and f is then 1.
        octets: number of bytes of a code.

    Attributes:
        levels: levels of all quantizers in one table; the levels of b bits begin at entry 2^b.
        whole_bytes: whether no coordinate continues in the next byte.
    """

    kind = "code_decoder"
    mean: Tensor
    decoder: Tensor
    layout: Tensor
    norm: Tensor
    levels: Tensor

    def __init__(self, mean: Tensor, decoder: Tensor, layout: Tensor, norm: Tensor, octets: int) -> None:
        super().__init__(mean=mean, decoder=decoder, layout=layout, norm=norm)
        self.octets = octets
        # The levels of b bits begin at entry 2^b, so that one look-up serves coordinates with different bits.
        levels = np.concatenate([np.zeros(1), *(build_normal_quantizer(b).levels for b in range(MAX_BITS + 1))])
        self.register_buffer("levels", torch.from_numpy(levels).to(mean))
        self.whole_bytes = not bool((layout[0] + layout[2] > BYTE).any())

    @property
    def input_dimensions(self) -> int | None:
        """Number of bytes of a code."""
        return self.octets

    def decode_coordinates(self, codes: Tensor) -> Tensor:
        """Look up the quantized value of each coordinate in codes `(n, bytes)`, in standard deviations, `(m, n)`.

        The result has one row for each coordinate.
        """
        bits, octets, shifts = self.layout.int()
        # (m, n): the byte in which each coordinate begins, with the next byte above it if some coordinates need it.
        cells = codes.T[octets].int()
        if not self.whole_bytes:
            cells |= functional.pad(codes, (0, 1)).T[octets + 1].int() << BYTE

        # The bits of each coordinate now begin at bit 0, with bits of other coordinates above them.
        cells >>= shifts.unsqueeze(1)
        entries = (cells & ((1 << bits) - 1).unsqueeze(1)) + (1 << bits).unsqueeze(1)
        return self.levels.index_select(0, entries.flatten()).reshape(entries.shape)  # 5 times as fast as levels[…]

    @cached_property
    def gram(self) -> Tensor:
        """Inner products of the rows of `decoder`, `(m, m)`."""
        return self.decoder @ self.decoder.T

    def compute_norm_factors(self, values: Tensor) -> Tensor:
        """Compute the factor f `(n,)` that gives each decoded vector the norm that all fitted vectors had.

        f scales the decoded offset from the mean: ‖μ + f·Σᵢ ŷᵢ·decoderᵢ‖ is the fitted norm. If the fitted norms
        varied, all factors are 1.

        Args:
            values: quantized coordinates ŷ `(m, n)`, as `decode_coordinates` returns them.
        """
        if not self.norm.any():
            return values.new_ones(values.shape[1])
        # ‖r‖² = ŷᵀ(DDᵀ)ŷ for the residual r = Dᵀŷ, without its d entries.
        squares = (values * (self.gram @ values)).sum(0)
        return self.solve_norm_factors(squares, (self.decoder @ self.mean) @ values)

    def solve_norm_factors(self, squares: Tensor, along: Tensor) -> Tensor:
        """Solve ‖μ + f·r‖ = norm for the positive factor f `(n,)` of each residual r. It is 1 where r is zero.

        Args:
            squares: ‖r‖², `(n,)`.
            along: ⟨μ, r⟩, `(n,)`.
        """
        # f²‖r‖² + 2f⟨μ, r⟩ − (norm² − ‖μ‖²) = 0. The mean of vectors with the same norm has a smaller norm.
        missing_square = (self.norm.square() - self.mean.square().sum()).clamp(min=0)
        root = (along.square() + squares * missing_square).sqrt()
        return torch.where(squares > 0, (root - along) / squares.clamp(min=torch.finfo(squares.dtype).tiny), 1)

    def forward(self, x: Tensor) -> Tensor:
        """Decode codes `(n, bytes)` to floats `(n, d)`. A code of zeros becomes a row of zeros."""
        codes = x.reshape(-1, x.shape[-1]).to(torch.uint8)
        residuals = self.decode_coordinates(codes).T @ self.decoder
        if self.norm.any():
            squares, along = residuals.square().sum(1), residuals @ self.mean
            residuals = residuals * self.solve_norm_factors(squares, along).unsqueeze(1)
        decoded = (residuals + self.mean).masked_fill((codes == 0).all(dim=-1, keepdim=True), 0)
        return decoded.reshape(*x.shape[:-1], len(self.mean))

    def score(self, encoded: Tensor, codes: Tensor, norm_factors: Tensor | None, tables: Tensor | None) -> Tensor:
        """Compute the inner products `(a, n)` of encoded queries with decoded codes `(n, bytes)`. Zero codes score 0.

        `norm_factors` and `tables` are intermediate results that save time if they are known.

        Args:
            encoded: queries as `TransformCoding.encode_queries` returns them: products with the decoder's rows, and in
                the last column with μ, `(a, m + 1)`.
            codes: codes.
            norm_factors: result of `compute_norm_factors` for the codes `(n,)`. None computes it, except with `tables`,
                where None means factors of 1.
            tables: result of `build_score_tables` for the queries; None decodes the codes instead.
        """
        if tables is not None:
            columns = codes.T.contiguous().int()
            scores = encoded.new_zeros(len(encoded), len(codes))
            for octet in range(self.octets):
                scores += tables[:, octet].index_select(1, columns[octet])
        else:
            values = self.decode_coordinates(codes)
            scores = encoded[:, :-1] @ values
            norm_factors = self.compute_norm_factors(values) if norm_factors is None else norm_factors

        scores = scores if norm_factors is None else scores * norm_factors
        # The last column of an encoded query is ⟨q, μ⟩, which the factor does not scale.
        return (scores + encoded[:, -1:]).masked_fill((codes == 0).all(dim=1), 0)

    def build_score_tables(self, encoded: Tensor) -> Tensor:
        """Compute the part of each encoded query's score that each value of each byte adds, `(a, bytes, 256)`.

        The term ⟨q, μ⟩ is not included.
        """
        # (a, m, 256): product of each query with the level that each value of the byte gives to each coordinate.
        contributions = encoded[:, :-1].unsqueeze(2) * self.build_level_table()
        return encoded.new_zeros(len(encoded), self.octets, 256).index_add_(1, self.layout[1], contributions)

    def build_level_table(self) -> Tensor:
        """Look up the value of every coordinate for each of the 256 values of the byte that holds it, `(m, 256)`.

        The table is valid only if `whole_bytes` is true.
        """
        bits, _, shifts = self.layout.unsqueeze(2)
        values = torch.arange(256, device=self.levels.device)
        entries = ((values >> shifts) & ((1 << bits) - 1)) + (1 << bits)
        return self.levels.index_select(0, entries.flatten()).reshape(entries.shape)
