"""Methods that are compared on one encoder: raw vectors, chains, and chains with rescoring by the raw vectors."""

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import save

from lathe.training.workspace import digest
from lathe.transforms import Chain

SEARCH = "Retrieval"
"""Type of mteb's tasks that search a corpus."""
CONTROL = "control"
"""Name of the method that leaves vectors unchanged."""
RESCORED_CANDIDATES = 40
"""Number of candidates of a query that the raw vectors rescore, as by `"rescore": 4` for ten results."""


@dataclass(frozen=True)
class EvaluatedMethod:
    """Method to evaluate: raw vectors, or a fitted chain of transforms.

    Attributes:
        name: unique name in results.
        group: `control`, `chain` or `rescored`. A `rescored` method is a chain whose candidates are rescored by the raw
            vectors; it is scored on searches only.
        chain: fitted chain; None for raw vectors, and for a chain that is read from `folder`.
        key: hash of the method; methods with equal keys give equal vectors.
        encoder_fingerprint: fingerprint of the only encoder whose vectors the chain takes; None for any encoder.
        folder: folder with the saved chain, for scoring processes; None before the chain is saved, and for raw vectors.
        dimensions: number of dimensions to truncate the output of a nested chain to; None to keep all.
    """

    name: str
    group: str
    chain: Chain | None = None
    key: str = ""
    encoder_fingerprint: str | None = None
    folder: Path | None = None
    dimensions: int | None = None

    def unsuited_reason(self, fingerprint: str, dimensions: int) -> str | None:
        """Return the reason why the method cannot transform the vectors of an encoder, or None if it can.

        Args:
            fingerprint: fingerprint of the encoder.
            dimensions: dimensions of the encoder's vectors.
        """
        if self.encoder_fingerprint not in (None, fingerprint):
            return "it was fitted on another encoder's vectors"
        taken = self.chain.input_dimensions if self.chain else None
        return f"it takes vectors of {taken} dimensions, not {dimensions}" if taken not in (None, dimensions) else None

    @property
    def compresses(self) -> bool:
        """Whether the method is a chain of transforms with fewer dimensions or quantized outputs."""
        return self.chain is not None and (self.chain.quantizer is not None or reduced_size(self.chain) is not None)

    def with_rescoring(self) -> "EvaluatedMethod":
        """Return a copy of the method whose search candidates are rescored by the raw vectors.

        The copy has another name and key, and the group `rescored`.
        """
        return replace(self, name=f"{self.name} rescored", group="rescored", key=f"{self.key}-rescored")

    def suits_task(self, task_type: str) -> bool:
        """Return whether the method suits tasks of this mteb type: with rescoring only searches, else all types."""
        return self.group != "rescored" or task_type == SEARCH


CONTROL_METHOD = EvaluatedMethod(CONTROL, CONTROL, key=CONTROL)
"""Method that leaves vectors unchanged, the baseline of all other methods."""


def reduced_size(chain: Chain) -> int | None:
    """Return the output dimensions of a fitted chain if they are fewer than its input dimensions, else None."""
    before, after = chain.input_dimensions, chain.output_dimensions
    return after if before and after and after < before else None


def hash_chain(chain: Chain) -> str:
    """Hash the tensors, steps and normalization of a fitted chain of transforms, as 32 hexadecimal digits.

    A chain in memory and its copy on disk have the same hash, in every process.
    """
    # Without metadata, whose order in safetensors bytes is random.
    tensors = save({name: tensor.detach().cpu().contiguous() for name, tensor in chain.tensors().items()})
    return digest(hashlib.sha256(tensors).hexdigest(), chain.normalize, chain.specs())[:32]
