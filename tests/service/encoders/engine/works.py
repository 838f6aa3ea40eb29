"""Requests of texts for workers, without and with a chain."""

from lathe.service.chains.folded_forms import ChainRef
from lathe.service.chains.registry import STARTERS
from lathe.service.encoders.engine.work import EncodeOptions, Work
from lathe.transforms.chain import Chain

COMPACT = STARTERS / "compact" / "1"


def work_of(texts, chain=None, keep_raw=False, **options):
    """Build work of these texts."""
    return Work(list(texts), EncodeOptions(**options), chain, keep_raw, 256)


def whole(work):
    """Take all texts of a work as one part."""
    return work.take(10**9)


def compact(dimensions=None, normalize=True, digest=None):
    """Build a reference to the starter chain `compact`."""
    return ChainRef(
        COMPACT, digest or Chain.load(COMPACT).metadata["tensors_sha256"], dimensions=dimensions, normalize=normalize
    )
