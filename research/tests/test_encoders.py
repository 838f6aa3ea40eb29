from dataclasses import replace

import numpy as np

from lathe.training.encoder.spec import DEFAULT_ENCODER
from research.encoders import BAG_DIMENSIONS, RequestedBagOfWords, list_variants


def test_variants_are_named_by_layer_and_pooling_and_are_a_family_by_pooling():
    variants = list_variants(DEFAULT_ENCODER, "layers")
    names = [f"all-MiniLM-L6-v2:layer{layer}-{way}" for layer in range(1, 7) for way in ("mean", "cls")]
    assert [one.spec.name for one in variants] == names
    assert [(one.spec.layer, one.spec.pooling) for one in variants[4:6]] == [(3, "mean"), (3, "cls")]
    assert {one.family for one in variants} == {f"all-MiniLM-L6-v2, {way} pooling" for way in ("cls", "mean")}


def test_list_variants_takes_one_layer_with_any_pooling():
    (variant,) = list_variants(DEFAULT_ENCODER, "layer4-max")
    assert variant.spec == replace(DEFAULT_ENCODER, name="all-MiniLM-L6-v2:layer4-max", layer=4, pooling="max")


def test_bag_of_words_vectors_have_norm_1_ignore_word_order_and_case_and_are_0_without_words():
    bag, told = RequestedBagOfWords().open(None), []
    texts = ["a cat and a dog", "", "a CAT and a dog!", "rain tonight", "a dog and a cat"]
    vectors = bag.encode(texts, None, told.append)
    assert vectors.shape == (5, BAG_DIMENSIONS) and vectors.dtype == np.float32 and told == [5]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [1, 0, 1, 1, 1], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(vectors[[2, 4]], vectors[[0, 0]])
    assert not np.allclose(vectors[3], vectors[0])
    assert bag.encode([], None, told.append).shape == (0, BAG_DIMENSIONS)
