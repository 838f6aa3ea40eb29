"""Query-weighted transform coding: vectors in a budget of bytes, with the bits where scores would err most."""

import math
from typing import Any, Literal, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from lathe.transforms.base import FLAG, SEED, FitContext, Map, Signature, apply, number, one_of, or_none, whole_number
from lathe.transforms.codes.allocation import (
    BYTE,
    CodeLayout,
    allocate_bits,
    allocate_equal_bits,
    lay_out,
    lay_out_in_sequence,
)
from lathe.transforms.codes.code_decoder import CodeDecoder
from lathe.transforms.codes.lloyd_max import MAX_BITS, build_normal_quantizer
from lathe.transforms.codes.quantization import Quantizer
from lathe.transforms.errors import ArtifactError, InputError, NotFittedError, StepError
from lathe.transforms.statistics import (
    Moments,
    Spectrum,
    compute_query_metric_roots,
    draw_rotation,
    is_near_zero,
    moments_of,
    row_norms,
)
from lathe.transforms.vectors import Vectors, as_tensor

CODEC_VERSION = 1
"""Version of the layout of the codes; a later one that old code would misread gets the next number."""

CLIP_DEVIATIONS = 5.0
"""Number of standard deviations beyond which a coordinate counts as clipped; of a normal, 1 in 1.7 million is."""

MAX_CLIPPED = 1e-3
"""Share of clipped coordinates from which a warning is due."""

MAX_NORM_DEVIATION = 0.02
"""Largest standard deviation of squared norms, relative to their mean, at which norms count as constant.

Rows that a chain normalizes have one norm, up to rounding and a few zero vectors."""

COMPARISON_BITS = 4
"""Largest number of bits for which comparing with every threshold is faster than a binary search."""

ENCODE_ROWS = 1024
"""Number of rows that are encoded at a time, so that their coordinates stay in the processor's cache."""

SCORE_ROWS = 4096
"""Number of codes that are scored at a time: their coordinates take 3 MB at 200 coordinates."""

TABLE_QUERIES = 4
"""Largest number of queries for which table look-ups are faster than decoding and a matrix product."""

Rotation = Literal["none", "random"]
"""Whether the coordinates are the principal axes, or these rotated at random."""


class TransformCoding(Quantizer):
    """Query-weighted transform coding: a code of `bytes` bytes for each vector.

    The bits go to the coordinates whose errors would change scores most. With the mean μ and the metric M_λ = (1 − λ)·I
    + λ·M/(tr M/d), M = E[qqᵀ] the uncentred second moment of queries, y = Gᵀ M_λ^½ (x − μ) are the coordinates of a
    vector x along the principal axes G of M_λ^½ (x − μ). Every coordinate is quantized by the Lloyd–Max quantizer of a
    normal of its variance, with as many bits as reduce the error most; coordinates without a bit are dropped.

    A query q is compared with a code in these coordinates: ⟨q, x̂⟩ = ⟨q, μ⟩ + f·⟨q', ŷ⟩ with q' = Gᵀ M_λ^−½ q, and x̂
    the vector that the code stands for, which `inverse_transform` returns. With λ = 1 and f = 1 the mean squared error
    of such a score over queries is E‖y − ŷ‖², so that bits go where scores err; with λ = 0 it is the mean squared error
    of the vectors. A quantizer's levels are means of their cells and so shorten x̂ − μ, more for some vectors than for
    others. Where all fitted vectors have the same norm, as after normalization, the factor f > 0 restores it: ‖x̂‖ is
    that norm. The factor follows from the code and takes no bytes. Where norms vary, or without `restore_norm`, f = 1.

    Transform coding: Goyal, *Theoretical foundations of transform coding* (2001); weighting by queries as in ScaNN's
    anisotropic loss (arXiv 1908.10396) and LeanVec (arXiv 2312.16335).

    Everything is learned from moments. Without queries the fitted rows stand for them. A code of zeros is the zero
    vector. A prefix of a code is a coarser code, which `shorten` decodes.

    Args:
        bytes: number of bytes of a code, at most the number of dimensions.
        weighting: λ, from 0 (all directions count alike) to 1 (by queries). Larger values find more of the full
            vectors' neighbours; on search tasks 0 loses least (research/codes.md).
        bits: None allocates bits by variance; 1 to 8 gives so many to each of the leading coordinates.
        rotation: `random` rotates the leading coordinates at random, which makes their variances alike; use it with
            `bits`.
        seed: seed of the rotation.
        restore_norm: whether x̂ gets the norm of the fitted vectors, if they have one. It finds more neighbours at small
            budgets; where queries look along few directions only and λ is near 1, scores are better without.
        adjust_levels: whether encoding moves levels after it rounded, so that a vector and its x̂ come closer. It does
            so only where norms are restored. Codes are decoded alike with and without.
        codec_version: version of the layout of the codes.

    Attributes:
        mean: μ, `(d,)`.
        encoder: `(m, d)`, Gᵀ M_λ^½ with every row divided by the standard deviation of its coordinate.
        decoder: `(m, d)`, Gᵀ M_λ^−½ with every row multiplied by that deviation; maps queries and decodes.
        layout: `(3, m)` integers: bits of each coordinate, the byte with the lowest of them, and its position there.
        norm: the norm of all fitted rows, `(1,)`; 0 if their norms differ or are not restored.
        query_count: number of queries that M was measured on; 0 if the fitted rows stood for them, or if λ = 0.

    Example:
        >>> import numpy as np
        >>> from lathe.transforms import Chain, TransformCoding
        >>> rows = np.random.default_rng(0).normal(size=(500, 32)).astype(np.float32)
        >>> chain = Chain([TransformCoding(bytes=16)]).fit(rows)
        >>> codes = chain.transform(rows)
        >>> codes.dtype, codes.shape
        (dtype('uint8'), (500, 16))
        >>> bool(((chain.dequantize(codes) * chain.transform_queries(rows)).sum(axis=1) > 0.9).all())
        True
    """

    kind = "codes"
    parameter_rules = {
        "codec_version": whole_number(1),
        "bytes": whole_number(1),
        "weighting": number(0, 1),
        "bits": or_none(whole_number(1, MAX_BITS)),
        "rotation": one_of(*get_args(Rotation)),
        "seed": SEED,
        "restore_norm": FLAG,
        "adjust_levels": FLAG,
    }
    shapes = {
        "mean": ("d",),
        "encoder": ("m", "d"),
        "decoder": ("m", "d"),
        "layout": (3, "m"),
        "norm": (1,),
        "query_count": (1,),
    }
    entry_ranges = {"norm": (0, math.inf), "query_count": (0, math.inf)}
    takes_queries = True
    max_adjustment_rounds = 3
    """Number of times that levels are chosen again where λ = 0. A round takes about as long as encoding without."""
    weighted_adjustment_rounds = 1
    """Number of times that levels are chosen again where λ > 0."""
    mean: Tensor
    encoder: Tensor
    decoder: Tensor
    layout: Tensor
    norm: Tensor
    query_count: Tensor

    def __init__(
        self,
        bytes: int,  # noqa: A002 - the word that users write
        weighting: float = 0.0,
        bits: int | None = None,
        rotation: Rotation = "none",
        seed: int = 0,
        restore_norm: bool = True,
        adjust_levels: bool = True,
        codec_version: int = CODEC_VERSION,
    ) -> None:
        super().__init__()
        self.bytes = bytes
        self.weighting = weighting
        self.bits = bits
        self.rotation = rotation
        self.seed = seed
        self.restore_norm = restore_norm
        self.adjust_levels = adjust_levels
        self.codec_version = codec_version
        self.layout, self.query_count = (torch.empty(0, dtype=torch.int64) for _ in range(2))
        self._prepared: tuple[tuple[Tensor, ...], CodeDecoder] | None = None

    def check_parameters(self) -> None:
        """Check that the codec is not newer than this code, then the parameters by their rules.

        Raises:
            StepError: for a newer codec, which asks for an upgrade, or a parameter out of range.
        """
        # Before the rules, because a newer codec may allow values that these do not.
        if isinstance(self.codec_version, int) and self.codec_version > CODEC_VERSION:
            raise StepError(
                f"{self.kind} of codec version {self.codec_version}; this Lathe reads up to {CODEC_VERSION}: upgrade it"
            )
        super().check_parameters()

    def output_signature(self, inputs: Signature) -> Signature:
        """Return the input signature marked as codes, so that no step may follow. Codes too large for the inputs raise.

        Raises:
            StepError: if the budget is more than 8 bits for every dimension, or less than `bits` would need.
        """
        if inputs.dimensions is not None:
            max_bytes = inputs.dimensions * (self.bits or MAX_BITS) // BYTE
            if self.bytes > max_bytes:
                raise StepError(
                    f"{self.kind} of {self.bytes} bytes needs more dimensions than {inputs.dimensions}: "
                    f"{self.bits or MAX_BITS} bits each fill {max_bytes} bytes"
                )

        return super().output_signature(inputs)

    def code_bytes(self, dimensions: int) -> int:
        """Return the number of bytes of a code, which is `bytes` for any number of dimensions."""
        return self.bytes

    @property
    def learned_directions(self) -> int:
        """Number of coordinates that have bits, m."""
        return self.encoder.shape[0]

    def fit_warnings(self) -> list[str]:
        """Return a list with one warning if the fitted vectors vary in too few directions to fill the bytes.

        The list is empty otherwise.
        """
        filled = -(-int(self._find_bit_ends().max()) // BYTE) if self.layout.numel() else self.bytes
        if filled < self.bytes:
            return [f"{self.kind} uses {filled} of {self.bytes} bytes: the vectors vary in too few directions"]
        return []

    def learn(self, data: Moments | Vectors, context: FitContext) -> None:
        """Compute mean, encoder, decoder and layout of the codes, and set the buffers. Rows that do not vary raise.

        They follow from the moments of the rows and, if given, of the queries.

        Raises:
            InputError: if the rows do not vary, or the moments of the queries have other dimensions.
        """
        moments = moments_of(data)
        queries = context.query_moments(moments.dimensions)
        if self.weighting == 0:
            # M_0 = I whatever the queries: a fit that they did not change can be refitted without them.
            queries = None
        root, inverse_root = compute_query_metric_roots(moments if queries is None else queries, self.weighting)
        # The principal axes of M_λ^½ (x − μ): the error of a score is the squared error of these coordinates.
        spectrum = Spectrum.from_matrix(root @ moments.covariance(ddof=0) @ root)
        # The weighting scales rounding error too, by up to the ratio of the metric's eigenvalues.
        noise = moments.rounding_variance() * float(np.linalg.eigvalsh(root)[-1]) ** 2
        variances = np.where(np.arange(moments.dimensions) < spectrum.rank, spectrum.values, 0)
        variances = np.where(variances > noise, variances, 0)
        if not variances.any():
            raise InputError(f"{self.kind} needs vectors that differ: these {moments.count} rows do not")

        axes, total = spectrum.directions, BYTE * self.bytes
        if self.rotation == "random":
            axes, variances = self._rotate(axes, variances, total)

        bits = (
            allocate_bits(variances, total) if self.bits is None else allocate_equal_bits(variances, total, self.bits)
        )
        layout = self._lay_out(bits, variances)
        chosen = axes[layout.coordinates]
        deviations = np.sqrt(variances[layout.coordinates])[:, None]
        self.mean = torch.from_numpy(moments.mean).float()
        self.encoder = torch.from_numpy(chosen @ root / deviations).float()
        self.decoder = torch.from_numpy(chosen @ inverse_root * deviations).float()
        self.layout = torch.from_numpy(np.stack([layout.bits, layout.octets, layout.shifts]))
        self.norm = torch.tensor([_find_constant_norm(moments) if self.restore_norm else 0.0])
        self.query_count = torch.tensor([0 if queries is None else queries.count])
        self._learn_levels(data, torch.from_numpy(deviations[:, 0]).float())

    def _lay_out(self, bits: NDArray[np.int64], variances: NDArray[np.float64]) -> CodeLayout:
        # Whole bytes cannot give all coordinates 3, 5, 6 or 7 bits.
        if self.bits is not None and BYTE % self.bits:
            return lay_out_in_sequence(bits, variances)
        return lay_out(bits, variances, self.bytes)

    def _learn_levels(self, data: Moments | Vectors, deviations: Tensor) -> None:
        """Do nothing, because the levels are the Lloyd–Max levels of the normal distribution.

        Subclasses may learn levels from the rows.

        Args:
            data: what the step is fitted on.
            deviations: standard deviation of each coordinate in the metric of the fit, `(m,)`.
        """

    def _rotate(
        self, axes: NDArray[np.float64], variances: NDArray[np.float64], total: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rotate the leading axes, as many as can have bits, by a random orthogonal matrix.

        Returns the axes `(d, d)`, and the variances along them `(d,)`. The rotation becomes part of the encoder's
        matrix, so a fast Hadamard transform would save nothing.
        """
        leading = min(total // (self.bits or 1), int((variances > 0).sum()))
        rotation = draw_rotation(leading, np.random.default_rng(self.seed))
        return (
            np.concatenate([rotation @ axes[:leading], axes[leading:]]),
            np.concatenate([rotation**2 @ variances[:leading], np.zeros(len(variances) - leading)]),
        )

    def check_tensors(self) -> None:
        """Raise `ArtifactError` if loaded tensors have wrong shapes or ranges, or bits that overlap or exceed the code.

        Raises:
            ArtifactError: if they do not.
        """
        super().check_tensors()
        for row, (low, high) in zip(self.layout, [(1, MAX_BITS), (0, self.bytes - 1), (0, BYTE - 1)], strict=True):
            self._check_entries("layout", row, low, high)

        starts, order = torch.sort(BYTE * self.layout[1] + self.layout[2])
        ends = self._find_bit_ends()[order]
        if int(ends[-1]) > BYTE * self.bytes or bool((starts[1:] < ends[:-1]).any()):
            raise ArtifactError(f"the tensor 'layout' of {self.kind} has bits that overlap or lie beyond the code")

    def coordinates(self, x: Tensor) -> Tensor:
        """Return the coordinates of rows `(n, d)` along the encoder's axes, `(m, n)`: one row for each coordinate.

        They are in standard deviations.
        """
        # The transposed product is half as fast again on a CPU, and keeps every coordinate's values together.
        return self.encoder @ (x - self.mean).T

    def forward(self, x: Tensor) -> Tensor:
        """Encode rows `(n, d)` as codes, uint8 `(n, bytes)`, a block at a time. Near-zero rows become zeros.

        The coordinates are rounded. Then, in `adjustment_rounds` rounds, levels move so that cosines grow.
        """
        rows = x.reshape(-1, x.shape[-1])
        code = x.new_empty(len(rows), self.bytes, dtype=torch.uint8)

        for start in range(0, len(rows), ENCODE_ROWS):
            y = self.coordinates(rows[start : start + ENCODE_ROWS])
            rounded = self.round_coordinates(y)
            code[start : start + ENCODE_ROWS] = self._adjust_levels(y, rounded) if self.adjustment_rounds else rounded

        code.masked_fill_(is_near_zero(row_norms(rows), rows.dtype), 0)
        return code.reshape(*x.shape[:-1], self.bytes)

    def round_coordinates(self, y: Tensor) -> Tensor:
        """Round coordinates `(m, n)` to their nearest levels, and return the codes, uint8 `(n, bytes)`.

        The coordinates are as `coordinates` returns them.
        """
        bits, octets, shifts = self.layout.cpu().tolist()
        # (m, n) cell numbers; coordinates with equal bits are neighbours, and are quantized together.
        cells = torch.cat([_find_cells(y[start:stop], bits[start]) for start, stop in _find_equal_runs(bits)])
        # One byte more for coordinates that reach into the next byte.
        code = torch.zeros(self.bytes + 1, y.shape[1], dtype=torch.uint8, device=y.device)
        crosses = bool((self._find_bit_ends() > BYTE * (self.layout[1] + 1)).any())

        # A byte holds up to eight coordinates; those that are the first, second, … of their byte are added together.
        for positions in _group_by_distinct_bytes(octets):
            index = torch.tensor(positions, device=y.device)
            shift = torch.tensor([shifts[i] for i in positions], dtype=torch.uint8, device=y.device)
            code[self.layout[1][index]] |= cells[index] << shift.unsqueeze(1)
            if crosses:
                beyond = cells[index].int() << shift.int().unsqueeze(1) >> BYTE
                code[self.layout[1][index] + 1] |= beyond.to(torch.uint8)

        # The code of zeros is the zero vector's; a row that would get it moves by one cell in its last coordinate.
        last = octets[-1]
        code = code[:-1]
        code[last] |= (code == 0).all(dim=0).to(torch.uint8) << shifts[-1]

        return code.T.contiguous()

    @property
    def adjustment_rounds(self) -> int:
        """Number of times that encoding chooses levels again after rounding.

        It is 0 without `adjust_levels`, and where norms are not restored.
        """
        if not (self.adjust_levels and self.norm.any()):
            return 0
        return self.weighted_adjustment_rounds if self.weighting else self.max_adjustment_rounds

    def _adjust_levels(self, y: Tensor, codes: Tensor) -> Tensor:
        """Choose the levels of vectors again, so that each vector and its decoded vector come closer.

        Rounding ignores the factor f that restores the norm of x̂ = μ + f·r. The best x̂ maximizes ⟨x, x̂⟩ where ‖x̂‖ is
        the norm, a condition with the multiplier κ = ⟨x, r⟩ / ⟨r, x̂⟩. For the f and κ of the present levels, ⟨x, x̂⟩ −
        κ‖x̂‖²/2 is largest for the levels nearest to (x/κ − μ)/f. These are taken if the cosine grows. With λ > 0 scores
        err in another metric than the cosine, and the levels nearest to (x − μ)/f in that metric are taken.

        Args:
            y: coordinates `(m, n)`.
            codes: codes of the rounded coordinates, uint8 `(n, bytes)`.
        """
        decoder, rounds = self._get_decoder(), self.adjustment_rounds
        if self.weighting:
            return self.round_coordinates(y / decoder.compute_norm_factors(decoder.decode_coordinates(codes)))

        # With λ = 0 the axes are orthogonal: inner products are sums over coordinates (m, n), weighted by variances.
        mean = (self.encoder @ self.mean).unsqueeze(1)
        x, variances = y + mean, self.decoder.square().sum(1)
        weighted, weighted_mean = x * variances.unsqueeze(1), mean.squeeze(1) * variances
        candidate, best = codes, y.new_full((y.shape[1],), -torch.inf)

        for adjusted in range(rounds + 1):
            values = decoder.decode_coordinates(candidate)
            squares, along, product = variances @ values.square(), weighted_mean @ values, (weighted * values).sum(0)
            factors = decoder.solve_norm_factors(squares, along)

            # ⟨x, x̂⟩ − ⟨x, μ⟩ orders as the cosine. A code of zeros, which a target that is not finite may get, is none.
            gain = factors * product
            better = (gain > best) & (candidate != 0).any(dim=1)
            codes, best = torch.where(better.unsqueeze(1), candidate, codes), torch.where(better, gain, best)
            if adjusted < rounds:
                # 1 / (κ·f)
                scale = (along + factors * squares) / gain
                candidate = self.round_coordinates(torch.addcmul(x * scale, mean, 1 / factors, value=-1))

        return codes

    def recode(self, floats: Any) -> Any:
        """Return the codes `(n, bytes)` that decode to `floats` `(n, d)`, which `inverse_transform` returned.

        `transform` would not do: it takes the residual of a vector whose norm was restored for a longer one.

        Returns:
            A tensor for a tensor, else a NumPy array.
        """
        rows = as_tensor(floats, like=self.mean)
        if not self.norm.any():
            return self.transform(floats)

        rows = rows.reshape(-1, rows.shape[-1])
        with torch.no_grad():
            y = self.coordinates(rows)
            codes = self.round_coordinates(y / self._find_norm_factors(y))
            codes.masked_fill_(is_near_zero(row_norms(rows), rows.dtype), 0)

        return codes.to(floats.device) if isinstance(floats, Tensor) else codes.cpu().numpy()

    def _find_norm_factors(self, y: Tensor) -> Tensor:
        """Compute the factor `(n,)` by which decoding scaled each vector, from the decoded coordinates `(m, n)`."""
        # The last coordinate has the fewest bits, so f is one of few ratios to its levels.
        fewest_bits = int(self.layout[0, -1])
        positive = torch.from_numpy(build_normal_quantizer(fewest_bits).levels[2 ** (fewest_bits - 1) :]).to(y)
        best, factors = torch.full_like(y[0], torch.inf), torch.ones_like(y[0])

        for level in positive:
            # For the right level of the last coordinate, y / factor lies on the levels of all coordinates.
            factor = (y[-1].abs() / level).clamp(min=torch.finfo(y.dtype).tiny)
            error = self._distance_to_levels(y / factor)
            factors = torch.where(error < best, factor, factors)
            best = torch.minimum(best, error)

        return factors

    def _distance_to_levels(self, y: Tensor) -> Tensor:
        """Return the mean squared distance `(n,)` of each vector's coordinates `(m, n)` to their nearest levels."""
        bits = self.layout[0].tolist()
        error = y.new_zeros(y.shape[1])
        for start, stop in _find_equal_runs(bits):
            levels = torch.from_numpy(build_normal_quantizer(bits[start]).levels).to(y)
            error += (y[start:stop] - levels[_find_cells(y[start:stop], bits[start]).int()]).square().sum(0)
        return error / len(bits)

    def inverse(self) -> CodeDecoder:
        """Return the decoder as a map from codes `(n, bytes)` to the vectors `(n, d)` that they stand for."""
        return self._build_decoder()

    def _build_decoder(self) -> CodeDecoder:
        return CodeDecoder(self.mean, self.decoder, self.layout, self.norm, self.bytes)

    def shorten(self, octets: int) -> Self:
        """Return a fitted step whose codes are the first `octets` bytes of this step's codes. More bytes raise.

        The bytes with the coordinates of largest variance come first. A step fitted for the smaller budget is better.

        Raises:
            NotFittedError: before `fit`.
            InputError: if a code has fewer bytes.
        """
        if not self.fitted:
            raise NotFittedError("codes must be fitted before they are shortened")
        if not 1 <= octets <= self.bytes:
            raise InputError(f"codes of {self.bytes} bytes cannot be shortened to {octets}")

        parameters = {name: value for name, value in self.spec().items() if name not in ("kind", "bytes")}
        shorter = type(self)(octets, **parameters)
        # A coordinate is retained if its last bit is within the first bytes.
        retained = self._find_bit_ends() <= BYTE * octets
        shorter.mean, shorter.norm, shorter.query_count = self.mean, self.norm, self.query_count
        shorter.encoder, shorter.decoder = self.encoder[retained], self.decoder[retained]
        shorter.layout = self.layout[:, retained]

        return shorter

    def _find_bit_ends(self) -> Tensor:
        """Return the position of the bit after the last bit of each coordinate within the code, `(m,)`."""
        return BYTE * self.layout[1] + self.layout[2] + self.layout[0]

    def clipped_share(self, rows: Any) -> float:
        """Return the share of the coordinates of rows `(n, d)` that lie far outside the fitted distribution, in [0, 1].

        Such coordinates lie more than `CLIP_DEVIATIONS` standard deviations from the mean. The outermost cell stands
        for values near its level; far beyond, the error grows with the value.
        """
        x = as_tensor(rows, like=self.mean)
        blocks = [self.coordinates(x[i : i + SCORE_ROWS]).abs() > CLIP_DEVIATIONS for i in range(0, len(x), SCORE_ROWS)]
        clipped = sum(int(block.sum()) for block in blocks)
        return clipped / max(1, len(x) * len(self.encoder))

    def encode_queries(self, queries: Any) -> Any:
        """Return queries q `(a, d)` as floats `(a, m + 1)`, which `CodeDecoder.score` compares with codes.

        The floats are the m coordinates q' in units of each coordinate's deviation, then ⟨q, μ⟩. The inner product with
        a code's coordinates in deviations, followed by a 1, is ⟨q, x̂⟩ where the norm factor is 1.

        Returns:
            A tensor for a tensor, else a NumPy array.
        """
        return apply(_QueryMap(self.mean, self.decoder), queries)

    def norm_factors(self, codes: Any) -> Any:
        """Compute the factor `(n,)` that restores each decoded code's norm to the fitted vectors', 1 if norms varied.

        It is 1 for each code if the fitted norms varied. An index that computes the factors once can score by table
        look-ups.

        Returns:
            A tensor for a tensor of codes, else a NumPy array.
        """
        coder, packed = self._prepare(codes)
        with torch.no_grad():
            blocks = [
                coder.compute_norm_factors(coder.decode_coordinates(packed[i : i + SCORE_ROWS]))
                for i in range(0, len(packed), SCORE_ROWS)
            ]
        factors = torch.cat(blocks) if blocks else self.mean.new_empty(0)
        return factors.to(codes.device) if isinstance(codes, Tensor) else factors.cpu().numpy()

    def score(self, queries: Any, codes: Any, norm_factors: Any = None) -> Any:
        """Return inner products `(a, n)` of queries `(a, d)` with the vectors of codes `(n, bytes)`. Other sizes raise.

        The score is asymmetric: documents are quantized, and queries are not.

        Args:
            queries: floats `(a, d)`, as a chain returns them without its quantizer.
            codes: uint8 `(n, bytes)`.
            norm_factors: what the method `norm_factors` returned for these codes `(n,)`; computed if None. With them a
                few queries are scored by look-ups of one table entry for each byte.

        Returns:
            A tensor for a tensor of queries, else a NumPy array.

        Raises:
            NotFittedError: before `fit`.
            InputError: for queries or codes of another size.
        """
        encoded = as_tensor(self.encode_queries(queries), like=self.mean)
        coder, packed = self._prepare(codes)
        known = None if norm_factors is None else as_tensor(norm_factors, like=self.mean)

        with torch.no_grad():
            use_tables = len(encoded) <= TABLE_QUERIES and coder.whole_bytes
            tables = coder.build_score_tables(encoded) if known is not None and use_tables else None
            blocks = []
            for start in range(0, len(packed), SCORE_ROWS):
                block = packed[start : start + SCORE_ROWS]
                scale = None if known is None else known[start : start + SCORE_ROWS]
                blocks.append(coder.score(encoded, block, scale, tables))

        scores = torch.cat(blocks, dim=1) if blocks else encoded.new_empty(len(encoded), 0)
        return scores.to(queries.device) if isinstance(queries, Tensor) else scores.cpu().numpy()

    def _prepare(self, codes: Any) -> tuple[CodeDecoder, Tensor]:
        """Check that an array holds codes of this step, and return the decoder and the codes.

        The codes are a uint8 tensor on the step's device.

        Raises:
            InputError: unless they are codes.
        """
        packed = torch.as_tensor(codes).to(self.device)
        if packed.dtype != torch.uint8 or packed.ndim != 2 or packed.shape[1] != self.bytes:
            raise InputError(
                f"codes must be uint8 of shape (n, {self.bytes}), got {packed.dtype} {tuple(packed.shape)}"
            )
        return self._get_decoder(), packed

    def _get_decoder(self) -> CodeDecoder:
        """Return the decoder for the step's present tensors.

        It is cached, and built again only after a fit or a move to another device has replaced the tensors.
        """
        tensors, prepared = tuple(self.buffers()), self._prepared
        if prepared is None or any(
            prepared_tensor is not tensor for prepared_tensor, tensor in zip(prepared[0], tensors, strict=True)
        ):
            # A tuple, because a module would become a part of this step's state.
            self._prepared = prepared = (tensors, self._build_decoder())
        return prepared[1]

    def decoded_norms(self, codes: Any) -> Any:
        """Return the L2 norms `(n,)` of the vectors that codes stand for.

        Returns:
            A tensor for a tensor of codes, else a NumPy array.
        """
        if not self.norm.any():
            return super().decoded_norms(codes)
        norms = torch.as_tensor(codes).any(dim=1) * self.norm.to(codes.device if isinstance(codes, Tensor) else "cpu")
        return norms if isinstance(codes, Tensor) else norms.numpy()

    def product_centroids(self) -> tuple[Tensor, Tensor]:
        """Return FAISS's 8-bit product quantizer of the codes: centroids and positions. Coordinates across bytes raise.

        FAISS's indexes of 8-bit product quantizers (`IndexPQ`, `IndexIVFPQ`) with these centroids search the codes, by
        the inner products ⟨q', ŷ⟩ without the norm factors. In a query for FAISS, coordinate i of `encode_queries`
        stands at the i-th position, and zeros elsewhere.

        Returns:
            The centroids `(bytes, 256, 8)`, and the position of each coordinate among their `8 · bytes` dimensions,
                `(m,)`.

        Raises:
            InputError: if coordinates cross bytes, as where many have 5 to 7 bits.
        """
        coder = self._build_decoder()
        if not coder.whole_bytes:
            raise InputError(f"these codes of {self.bytes} bytes are not a product quantizer: coordinates cross bytes")

        octets = self.layout[1].tolist()
        # Coordinate i is the within[i]-th of its byte, and so that dimension of the byte's centroids.
        within = [octets[:i].count(octet) for i, octet in enumerate(octets)]
        centroids = self.decoder.new_zeros(self.bytes, 8, 256)
        centroids[octets, within] = coder.build_level_table()

        return centroids.transpose(1, 2).contiguous(), torch.tensor(
            [8 * o + w for o, w in zip(octets, within, strict=True)]
        )

    def score_codes(self, codes: Any, others: Any) -> Any:
        """Return the inner products `(a, n)` of the vectors that two arrays of codes stand for.

        The symmetric score: both are quantized, as where documents are compared with documents.

        Args:
            codes: uint8 `(a, bytes)`.
            others: uint8 `(n, bytes)`.
        """
        return self.score(self.inverse_transform(codes), others)


class _QueryMap(Map):
    """Map of queries q ↦ (decoder·q, ⟨q, μ⟩), `(a, d)` to `(a, m + 1)`."""

    kind = "query_map"
    weight: Tensor

    def __init__(self, mean: Tensor, decoder: Tensor) -> None:
        super().__init__(weight=torch.cat([decoder, mean.unsqueeze(0)]) if decoder.numel() else decoder)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight)


def _find_constant_norm(moments: Moments) -> float:
    """Return the L2 norm that all rows have, from their moments, or 0 if the norms differ.

    `MAX_NORM_DEVIATION` is the difference that is allowed.
    """
    square = float(moments.second_moment().trace())
    # NaN where the fourth moments are unknown: then the norms count as different.
    deviation = float(np.sqrt(np.maximum(moments.squared_norm_variance(), 0)))
    return float(np.sqrt(square)) if deviation <= MAX_NORM_DEVIATION * square else 0.0


def _find_cells(y: Tensor, bits: int) -> Tensor:
    """Return the quantizer's cell of each value, uint8 of the shape of `y`: how many thresholds lie below the value."""
    thresholds = torch.from_numpy(build_normal_quantizer(bits).thresholds).to(y)
    if bits > COMPARISON_BITS:
        return torch.bucketize(y, thresholds, out_int32=True).to(torch.uint8)
    cells = torch.zeros(y.shape, dtype=torch.uint8, device=y.device)
    for threshold in thresholds:
        cells += y > threshold
    return cells


def _find_equal_runs(values: list[int]) -> list[tuple[int, int]]:
    """Return start and stop of every run of equal neighbours in a list, as (start, stop) pairs in order."""
    starts = [i for i, value in enumerate(values) if i == 0 or value != values[i - 1]]
    return list(zip(starts, [*starts[1:], len(values)], strict=True))


def _group_by_distinct_bytes(octets: list[int]) -> list[list[int]]:
    """Divide coordinates into groups of positions within which no two lie in the same byte.

    Args:
        octets: byte of each coordinate.
    """
    groups: list[list[int]] = []
    counts: dict[int, int] = {}
    for i, octet in enumerate(octets):
        nth = counts[octet] = counts.get(octet, -1) + 1
        if nth == len(groups):
            groups.append([])
        groups[nth].append(i)

    return groups
