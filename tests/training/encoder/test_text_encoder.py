import itertools

from lathe.training.encoder.text_encoder import compute_space_id

PARTS = ("fingerprint", "compact@1", "digest", 128)


def test_compute_space_id_differs_if_any_part_differs_or_is_missing():
    changed = [PARTS[:i] + (other,) + PARTS[i + 1 :] for i, other in enumerate(["f2", "compact@2", "d2", 64])]
    without = [PARTS[:i] + (None,) + PARTS[i + 1 :] for i in range(3)]
    ids = [compute_space_id(*parts) for parts in [PARTS, *changed, *without, (None, None, None, 128)]]
    assert len(set(ids)) == len(ids)


def test_compute_space_id_differs_if_characters_move_between_parts():
    splits = [
        ("ab", "c", "d", 1),
        ("a", "bc", "d", 1),
        ("a", "b", "cd", 1),
        ("a", "b", "c", 1),
        ('a", "b', "c", "d", 1),
    ]
    for one, other in itertools.combinations(splits, 2):
        assert compute_space_id(*one) != compute_space_id(*other)
