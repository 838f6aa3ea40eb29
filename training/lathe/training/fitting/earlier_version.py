"""Adding rows to a fitted version of a chain, from its stored moments, without its old rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lathe.training.encoder.text_encoder import TextEncoder
from lathe.training.errors import FitError
from lathe.transforms.artifact import FitDistribution, load_moments
from lathe.transforms.chain import Chain
from lathe.transforms.incremental import Stages, update_chain
from lathe.transforms.progress import Progress
from lathe.transforms.quality import Certificate, certify
from lathe.transforms.statistics import Moments
from lathe.transforms.vectors import FloatArray, Vectors

COMPARED = (
    *("local_spearman", "recall_at_10", "recall_at_10_rescored_4x", "positional_stress"),
    *("mean_norm", "isoscore", "bytes_per_vector", "sizes", "out_of_domain"),
)
"""Certificate keys that are compared between two versions."""


@dataclass(frozen=True)
class EarlierVersion:
    """Fitted version of a chain, with stored moments, that rows are added to.

    Attributes:
        ref: `name@version`.
        chain: the fitted chain; its metadata is the manifest.
        moments: moments of the rows it was fitted on, by refit stage.
        reference: distribution of these rows; None if it was not stored.
    """

    ref: str
    chain: Chain
    moments: dict[int, Moments]
    reference: FitDistribution | None = None

    def certify_on(self, heldout: FloatArray, out_of_domain: Mapping[str, FloatArray], seed: int) -> Certificate:
        """Certify this version on the vectors that the new one is certified on.

        Returns `ref` as `chain`, and those metrics named in `COMPARED` that the certificate has.

        Args:
            heldout: held-out rows of the new fit `(n, d)`.
            out_of_domain: out-of-domain vectors by corpus name.
            seed: seed of the certificate.
        """
        found = certify(self.chain, heldout, n_fit=self.count, seed=seed, out_of_domain=out_of_domain)
        return {"chain": self.ref} | {key: found[key] for key in COMPARED if key in found}

    @classmethod
    def read(cls, ref: str, chain: Chain, folder: Path) -> "EarlierVersion":
        """Load the moments and fit distribution that a version's artifact stores. Returns them with its chain as an
        `EarlierVersion`.

        Args:
            ref: `name@version`.
            chain: the fitted chain, with the manifest as its metadata.
            folder: folder of the artifact.

        Raises:
            FitError: if the version stores no moments.
            ArtifactError: if the stored moments or the fit distribution are damaged.
        """
        require_moments(ref, chain.metadata)
        reference = FitDistribution.load(folder) if chain.metadata.get("reference") else None
        return cls(ref, chain, load_moments(folder), reference)

    @property
    def count(self) -> int:
        """Number of rows it was fitted on, from its moments."""
        return next(iter(self.moments.values())).count

    def require_same_space(self, encoder: TextEncoder | None) -> None:
        """Check that the version was fitted on vectors of the same encoder, or that neither has one. Raises `FitError`
        otherwise.
        """
        described = self.chain.metadata.get("encoder")
        was, now = described and described["fingerprint"], encoder and encoder.fingerprint
        if was != now:
            of = f"of {described['name']} ({was})" if described else "without an encoder"
            found = f"of {encoder.name} ({now})" if encoder else "without an encoder"
            raise FitError(f"{self.ref} was fitted on vectors {of}, these are {found}: they do not add up")

    def require_new(self, digest: str) -> None:
        """Raise `FitError` if the version was fitted on the rows with this digest already, or they were added to it."""
        if any(earlier.get("rows_digest") == digest for earlier in self.provenance()["added_to"]):
            raise FitError(f"{self.ref} was fitted on these very rows already: they would count twice")

    def refit_with_rows(self, rows: Vectors, on_progress: Progress) -> tuple[Chain, dict[int, Moments], list[str]]:
        """Update the version's chain with new rows `(n, d)`. Returns the new chain, its moments of old and new rows by
        refit stage, and warnings. The version itself is not changed.

        The old rows enter through the stored moments. Steps that moments cannot update keep their map, and a quantizer
        that learns from rows is fitted on the new rows alone; the warnings name both. The last warning, that the
        certificate is measured on new rows only, is always there.

        Raises:
            TransformError: if the chain cannot be updated; see `lathe.transforms.incremental.update_chain`.
        """
        done = update_chain(self.chain, self.moments, rows, on_progress)
        said = [f"{self.chain[i].kind} keeps the map of {self.ref}: {reason}" for i, reason in done.retained.items()]
        if done.chain.quantizer is not None and done.chain.quantizer.learns_from == "rows":
            said.append(f"{done.chain.quantizer.kind} has the ranges of the added rows alone")
        return (
            done.chain,
            done.moments,
            [*said, f"measured on rows held out of what was added to {self.ref}, on no older ones"],
        )

    def provenance(self) -> dict[str, Any]:
        """Return the provenance that a new version takes over from this one. The dict has the earlier versions and
        their sources, oldest first, as `added_to`, and the training logs as `training`.

        Entries of `added_to` have the keys `chain`, and `source`, `rows` and `rows_digest` if they are known.
        """
        was = self.chain.metadata.get("provenance") or {}
        short = {"chain": self.ref} | {key: was[key] for key in ("source", "rows", "rows_digest") if key in was}
        return {"added_to": [*was.get("added_to", []), short], "training": was.get("training", [])}


def require_moments(ref: str, manifest: Mapping[str, Any]) -> None:
    """Raise `FitError` unless the version's manifest says that it stores moments."""
    if not manifest.get("moments"):
        raise FitError(f"{ref} carries no moments to add to: fit it once with --keep-moments (keep_moments in JSON)")


def compute_stored_moments(chain: Chain, rows: Vectors) -> tuple[dict[int, Moments], list[str]]:
    """Compute the moments of the rows `(n, d)` that a chain was fitted on, from which its steps can be refitted later.
    Returns them by the number of the refit stage, and warnings.

    A refit stage is a group of consecutive steps refitted from the same moments. The dict is empty, with one warning,
    if no step could be refitted from moments.
    """
    stages = Stages.of(chain)
    if moments := stages.take_moments(chain, rows):
        return moments, []
    reasons = "; ".join(f"{chain[index].kind}: {reason}" for index, reason in stages.retained.items())
    return {}, [f"no moments are kept, since no step could be refitted from them ({reasons or 'none learns anything'})"]
