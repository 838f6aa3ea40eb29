"""Moments of the fitted rows, stored in the artifact folder of a chain so that rows can be added later.

chain.safetensors   …, moments.<stage>.<count, mean, scatter, third, fourth>
manifest.json       …, "moments": {"count": 9600, "stages": {"1": {"dimensions": 384, "rows": "unit"}}}

They hold no rows, but they reveal the mean and the covariance of the rows. Serving does not read them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lathe.transforms.artifact.folder import display_name, read_artifact
from lathe.transforms.errors import ArtifactError
from lathe.transforms.statistics import Moments

MOMENTS_PREFIX = "moments."
"""Prefix of the names of moment tensors in chain.safetensors."""


def moments_to_tensors(moments: Mapping[int, Moments]) -> dict[str, Tensor]:
    """Return the moments of all refit stages (groups of steps that are fitted again together) as one dict of tensors. A
    key is `moments.<stage>.<array>`.
    """
    return {
        f"{MOMENTS_PREFIX}{stage}.{name}": torch.from_numpy(np.ascontiguousarray(array))
        for stage, stage_moments in moments.items()
        for name, array in stage_moments.arrays().items()
    }


def describe_moments(moments: Mapping[int, Moments]) -> dict[str, Any]:
    """Return the manifest's entry about stored moments, `{"moments": …}`, or an empty dict without moments. It holds
    the number of rows and, for each refit stage, the dimensions and whether its rows are normalized.
    """
    if not moments:
        return {}

    stages = {
        str(stage): {"dimensions": stage_moments.dimensions, "rows": "unit" if stage else "as they come"}
        for stage, stage_moments in moments.items()
    }
    # The moments of every stage are of the same rows, so one count holds for all.
    return {"moments": {"count": next(iter(moments.values())).count, "stages": stages}}


def load_moments(path: Path) -> dict[int, Moments]:
    """Load the stored moments from the artifact folder `path`, by refit stage. A refit stage is a group of steps that
    are fitted again together. The dict is empty if none were stored.

    Raises:
        ArtifactError: if the artifact is damaged, or the moments are not what its manifest says.
    """
    manifest, tensors = read_artifact(path)
    by_stage = {}
    try:
        declared = manifest.get("moments", {"stages": {}})
        for stage, stage_fields in declared["stages"].items():
            # The dot at the end keeps stage 1 apart from stages 10 to 19.
            prefix = f"{MOMENTS_PREFIX}{stage}."
            arrays = {n.removeprefix(prefix): t.numpy() for n, t in tensors.items() if n.startswith(prefix)}
            moments = Moments.from_arrays(arrays)
            _require_plausible(moments, declared["count"], stage_fields["dimensions"])
            by_stage[int(stage)] = moments
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"the moments of {display_name(path)} cannot be used: {error}") from error

    return by_stage


def _require_plausible(moments: Moments, count: int, dimensions: int) -> None:
    """Check that moments are of this many rows and dimensions, are finite, and have a valid scatter matrix.

    The scatter must be symmetric with a nonnegative diagonal.

    Raises:
        ArtifactError: if they are not.
    """
    shapes = (moments.mean.shape, moments.third.shape, moments.scatter.shape)
    if moments.count != count or shapes != ((dimensions,), (dimensions,), (dimensions, dimensions)):
        raise ArtifactError(f"they are not of {count} rows of {dimensions} dimensions")
    if not all(np.isfinite(array).all() for array in moments.arrays().values()):
        raise ArtifactError("they are not finite")
    # `eigh` reads one triangle only, so a fit would not notice a scatter that is not symmetric.
    if not np.allclose(moments.scatter, moments.scatter.T) or (np.diag(moments.scatter) < 0).any():
        raise ArtifactError("their scatter is not a scatter matrix")
