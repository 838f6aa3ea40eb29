"""State of a fit while its stages run, and the result of a fit."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.fitting.code_search import CodeSearch
from lathe.training.fitting.encoding import EncodedSource, FitEngine
from lathe.training.fitting.out_of_domain import OutOfDomainTexts
from lathe.training.fitting.pairs import EncodedPairs
from lathe.training.fitting.requests import NewFit
from lathe.training.sources.source import Source
from lathe.transforms.artifact import FitDistribution
from lathe.transforms.chain import Chain
from lathe.transforms.quality import Certificate
from lathe.transforms.statistics import Gaussian
from lathe.transforms.vectors import FloatArray, Vectors


@dataclass(frozen=True)
class FittedChain:
    """Fitted chain of transforms, with its certificate and the distribution of the fitted rows.

    Attributes:
        chain: the chain; its metadata holds encoder, provenance and certificate.
        distribution: distribution of the fitted rows, to be stored with the chain.
        certificate: see `lathe.transforms.quality.certify`.
        failed_gates: keys of the gates that failed.
        encoded: vectors of the whole source; None if they are not stored.
    """

    chain: Chain
    distribution: FitDistribution
    certificate: Certificate
    failed_gates: list[str]
    encoded: EncodedSource | None = None


@dataclass(kw_only=True)
class FitState:
    """State of a fit, which its stages read and extend.

    Attributes:
        request: the request.
        encoder: encoder of the source's texts or vectors; None for vectors without an encoder.
        target_encoder: encoder whose vectors of the same texts are the targets; None without one.
        workspace: folder of the workspace folders.
        engine: encodes the source and computes moments.
        command: the user's command, for the provenance.
        chain: the chain to fit.
        general: Gaussian of general vectors of the encoder; None if it is not known.
        source: the source.
        corpora: texts of the out-of-domain corpora.
        files: keeps the files with vectors until the caller has used the result.
        folder: workspace folder of the source.
        encoded: vectors of the source.
        fit_rows: indices of the rows to fit on.
        heldout_rows: indices of the held-out rows.
        rows: vectors of the rows to fit on, read lazily, `(n, d)`.
        pairs: vectors of queries and relevant documents; None without pairs.
        out_of_domain: out-of-domain vectors by corpus.
        targets: targets of all rows `(n, k)`; None without targets.
        general_warning: sentence about general vectors that were added to few rows; None if none were added.
        search: result of the search for byte codes; None without a budget of bytes.
        distribution: distribution of the fitted rows.
        certificate: the certificate.
    """

    request: NewFit
    encoder: TextEncoder | None
    target_encoder: TextEncoder | None
    workspace: Path
    engine: FitEngine
    command: str | None
    chain: Chain
    source: Source
    corpora: OutOfDomainTexts
    general: Gaussian | None = None
    files: ExitStack = field(default_factory=ExitStack)
    folder: Path = field(init=False)
    encoded: EncodedSource = field(init=False)
    fit_rows: NDArray[np.int64] = field(init=False)
    heldout_rows: NDArray[np.int64] = field(init=False)
    rows: Vectors = field(init=False)
    pairs: EncodedPairs | None = None
    out_of_domain: dict[str, FloatArray] = field(default_factory=dict)
    targets: Vectors | None = None
    general_warning: str | None = None
    search: CodeSearch | None = None
    distribution: FitDistribution = field(init=False)
    certificate: Certificate = field(init=False)

    @cached_property
    def heldout(self) -> FloatArray:
        """Vectors of the held-out rows `(m, d)`, read from disk at the first access."""
        return np.array(self.encoded.vectors[self.heldout_rows])
