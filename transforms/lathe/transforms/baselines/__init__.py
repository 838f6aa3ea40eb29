"""Controls that the papers compare their methods with.

Each is a transform like any other.
"""

from lathe.transforms.baselines.autoencoder import Autoencoder
from lathe.transforms.baselines.debiasing import R1, MeanCentering, RandomDirection
from lathe.transforms.baselines.flow import Flow
from lathe.transforms.baselines.random_reductions import RandomProjection, RandomSelection

__all__ = ["Autoencoder", "Flow", "MeanCentering", "R1", "RandomDirection", "RandomProjection", "RandomSelection"]
