from lathe.service.chains.registry import STARTERS
from lathe.service.publishing.fits import read_general_gaussian
from lathe.transforms import Chain


def test_general_vectors_are_known_for_the_encoder_of_the_starter_chains_alone():
    fingerprint = Chain.load(STARTERS / "codes48" / "1").metadata["encoder"]["fingerprint"]
    gaussian = read_general_gaussian(fingerprint)
    assert gaussian is not None and gaussian.directions.shape == (128, 384)
    assert read_general_gaussian("another") is None
