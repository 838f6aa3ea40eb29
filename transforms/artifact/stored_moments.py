"""Moments that travel with a chain's artifact.

chain.safetensors   …, moments.<stage>.<count, mean, scatter, third, fourth>
manifest.json       …, "moments": {"count": 9600, "stages": {"1": {"dimensions": 384, "rows": "unit"}}}

They hold no rows, but they tell the mean and the covariance of the rows. Serving does not read them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transforms.artifact.folder import called, read_artifact
from transforms.errors import ArtifactError
from transforms.statistics.moments import Moments

PREFIX = "moments."


def tensors_of(moments: Mapping[int, Moments]) -> dict[str, Tensor]:
    """Moments by stage as the tensors of an artifact."""
    return {
        f"{PREFIX}{stage}.{name}": torch.from_numpy(np.ascontiguousarray(array))
        for stage, found in moments.items()
        for name, array in found.arrays().items()
    }


def described(moments: Mapping[int, Moments]) -> dict[str, Any]:
    """What a manifest says of them; nothing if there are none."""
    if not moments:
        return {}
    stages = {
        str(stage): {"dimensions": found.dimensions, "rows": "unit" if stage else "as they come"}
        for stage, found in moments.items()
    }
    return {"moments": {"count": next(iter(moments.values())).count, "stages": stages}}


def read_moments(path: Path) -> dict[int, Moments]:
    """The moments of an artifact folder by stage; none if it was saved without.

    Raises:
        ArtifactError: if the artifact was damaged, or they are not what its manifest says.
    """
    manifest, tensors = read_artifact(path)
    found = {}
    try:
        said = manifest.get("moments", {"stages": {}})
        for stage, about in said["stages"].items():
            prefix = f"{PREFIX}{stage}."
            arrays = {n.removeprefix(prefix): t.numpy() for n, t in tensors.items() if n.startswith(prefix)}
            found[int(stage)] = checked(Moments.from_arrays(arrays), said["count"], about["dimensions"])
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise ArtifactError(f"the moments of {called(path)} cannot be used: {error}") from error
    return found


def checked(moments: Moments, count: int, dimensions: int) -> Moments:
    """The moments, if they can be any of so many rows so wide.

    Raises:
        ArtifactError: if not.
    """
    shapes = (moments.mean.shape, moments.third.shape, moments.scatter.shape)
    if moments.count != count or shapes != ((dimensions,), (dimensions,), (dimensions, dimensions)):
        raise ArtifactError(f"they are not of {count} rows {dimensions} wide")
    if not all(np.isfinite(array).all() for array in moments.arrays().values()):
        raise ArtifactError("they are not finite")
    if not np.allclose(moments.scatter, moments.scatter.T) or (np.diag(moments.scatter) < 0).any():
        raise ArtifactError("their scatter is none")
    return moments
