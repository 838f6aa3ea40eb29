"""Methods that are compared on one encoder: raw vectors, chains, and chains whose candidates are ranked again."""

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
"""Number of candidates of a query that are ranked again by the raw vectors: `"rescore": 4` for ten results."""


@dataclass(frozen=True)
class EvaluatedMethod:
    """Method to evaluate: raw vectors, or a fitted chain of transforms.

    Attributes:
        name: unique name in results.
        group: `control`, `chain` or `rescored`, which decides in which tables the method is compared. A `rescored`
            method is a chain whose candidates are ranked again by the raw vectors; it is scored on searches only.
        chain: fitted chain; None for raw vectors, and for a chain that is read from `folder`.
        key: hash of the method; equal keys mean equal maps.
        encoder_fingerprint: fingerprint of the only encoder whose vectors the chain takes; None for any.
        folder: folder to which the chain was saved, for scoring processes; None before that, and for raw vectors.
        dimensions: dimensions to which the output of a nested chain is cut; None for its own.
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

        The encoder is given by its fingerprint and dimensions.
        """
        if self.encoder_fingerprint not in (None, fingerprint):
            return "it was fitted on another encoder's vectors"
        width = self.chain.input_dimensions if self.chain else None
        return f"it takes vectors {width} wide, these are {dimensions}" if width not in (None, dimensions) else None

    @property
    def compresses(self) -> bool:
        """Whether the method is a chain of transforms with fewer dimensions or quantized outputs."""
        return self.chain is not None and (self.chain.quantizer is not None or reduced_size(self.chain) is not None)

    def with_rescoring(self) -> "EvaluatedMethod":
        """Return a copy of the method that ranks the candidates of its searches again by the raw vectors."""
        return replace(self, name=f"{self.name} rescored", group="rescored", key=f"{self.key}-rescored")

    def suits_task(self, task_type: str) -> bool:
        """Return whether the method can be scored on tasks of this mteb type.

        Rescoring methods suit searches only, all others suit every type.
        """
        return self.group != "rescored" or task_type == SEARCH


CONTROL_METHOD = EvaluatedMethod(CONTROL, CONTROL, key=CONTROL)
"""Method that leaves vectors unchanged, with which all others are compared."""


def reduced_size(chain: Chain) -> int | None:
    """Return the output dimensions of a fitted chain, or None if they are not fewer than its input dimensions."""
    before, after = chain.input_dimensions, chain.output_dimensions
    return after if before and after and after < before else None


def hash_chain(chain: Chain) -> str:
    """Return a hash of a fitted chain of transforms: its tensors, steps and normalization, as 32 hexadecimal digits.

    It is the same for a chain in memory, for its copy on disk, and in every process.
    """
    # Without metadata, whose order in safetensors bytes is random.
    tensors = save({name: tensor.detach().cpu().contiguous() for name, tensor in chain.tensors().items()})
    return digest(hashlib.sha256(tensors).hexdigest(), chain.normalize, chain.specs())[:32]
