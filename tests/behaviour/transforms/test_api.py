import subprocess
import sys

import pytest

from lathe import transforms

API = [
    "ABTT",
    "PCA",
    "R1",
    "R2",
    "TRANSFORMS",
    "ArtifactError",
    "Autoencoder",
    "Binary",
    "Chain",
    "ContrastiveAlignment",
    "Flow",
    "GeoPres",
    "InputError",
    "ITQ",
    "Int8",
    "LowRankAffine",
    "MeanCentering",
    "Moments",
    "Normalize",
    "NotFittedError",
    "PairedMoments",
    "Procrustes",
    "ProductCoding",
    "QueryAdapter",
    "RandomDirection",
    "RandomProjection",
    "RandomSelection",
    "RelevanceModel",
    "Searches",
    "StepError",
    "Transform",
    "TransformCoding",
    "TransformError",
    "Truncation",
    "Whitening",
    "angular_stress",
    "build_steps",
    "certify",
    "diagnose",
    "evaluate_probabilities",
    "isoscore",
    "local_spearman",
    "parse_steps",
    "pearson_compat",
    "positional_stress",
    "recall_at_k",
]


def test_the_package_exports_these_names_and_no_others():
    assert transforms.__all__ == sorted(API)
    assert all(hasattr(transforms, name) for name in API)


@pytest.mark.parametrize("name", [name for name in API if name.endswith("Error")])
def test_every_error_is_a_transform_error_and_a_value_error(name):
    assert issubclass(getattr(transforms, name), transforms.TransformError)
    assert issubclass(transforms.TransformError, ValueError)


def test_importing_transforms_imports_no_model_library_and_no_server():
    code = "import sys, lathe.transforms; print(*{'sentence_transformers', 'fastapi', 'orjson'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ""
