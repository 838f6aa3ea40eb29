import pytest

from lathe.transforms import TRANSFORMS, GeoPres, StepError, build_steps, parse_steps
from lathe.transforms.kinds import KINDS


def geopres(**parameters):
    return GeoPres(**parameters).spec()


NESTED = geopres(dimensions=128, nested=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("r2", [{"kind": "r2"}]),
        ("geopres:128", [geopres(dimensions=128)]),
        ("r2,geopres:128", [{"kind": "r2"}, geopres(dimensions=128)]),
        (" r2 , geopres:128 ,", [{"kind": "r2"}, geopres(dimensions=128)]),
        ("geopres:128,nested=true", [NESTED]),
        ("geopres:dimensions=128,nested=true", [NESTED]),
        ("geopres:nested=true,dimensions=128,r2", [NESTED, {"kind": "r2"}]),
        ("geopres,dimensions=128,nested=true", [NESTED]),
        (
            "geopres:64,learning_rate=5e-3,seed=7,r2,geopres:8,steps=0",
            [geopres(dimensions=64, learning_rate=5e-3, seed=7), {"kind": "r2"}, geopres(dimensions=8, steps=0)],
        ),
        ('{"kind": "r2"}', [{"kind": "r2"}]),
        ('r2,{"kind": "geopres", "dimensions": 128, "nested": true}', [{"kind": "r2"}, NESTED]),
        ('{"kind": "geopres", "dimensions": 128},nested=true,r2', [NESTED, {"kind": "r2"}]),
    ],
)
def test_parse_steps_reads_steps_from_text(text, expected):
    assert [step.spec() for step in parse_steps(text)] == expected


def test_transforms_registers_exactly_these_kinds_of_step():
    assert sorted(TRANSFORMS) == [
        "abtt",
        "autoencoder",
        "binary",
        "codes",
        "contrastive_alignment",
        "flow",
        "geopres",
        "int8",
        "itq",
        "low_rank_affine",
        "mc",
        "normalize",
        "pca",
        "procrustes",
        "product_codes",
        "query_adapter",
        "r1",
        "r2",
        "rand",
        "random_projection",
        "random_selection",
        "sides",
        "truncation",
        "whitening",
    ]
    assert list(KINDS) == sorted(TRANSFORMS)
    assert all(cls.kind == kind for kind, cls in TRANSFORMS.items())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "at least one step"),
        (" , ,", "at least one step"),
        ("r3", "unknown kind of step 'r3'; there are abtt, .*geopres, .*whitening"),
        ("R2", "unknown kind"),
        ("{}", "unknown kind of step None"),
        ('{"kind": 3}', "unknown kind of step 3"),
        ("nested=true,r2", "stands before any step"),
        ("r2:128", "r2 takes no parameter: write r2 alone"),
        ("r2,power=2", "r2 has no parameter 'power'"),
        ("geopres:8,colour=red,size=3", "no parameter 'colour', 'size'; it takes dimensions, nested"),
        ("geopres", "dimensions"),
        ("geopres:", "dimensions"),
        ("geopres:many", "whole number from 1 to 65536, got 'many'"),
        ("geopres:0", "whole number from 1 to 65536, got 0"),
        ("geopres:8,steps=1000000000000000", "steps must be a whole number from 0 to 1000000"),
        ("geopres:8,batch=100000", "batch must be a whole number from 2 to 65536"),
        (f"autoencoder:8,seed={2**63}", "seed must be a whole number from 0 to 9223372036854775807"),
        ("flow:1000", "blocks must be a whole number from 1 to 64"),
        ("flow:hidden=10000", "hidden must be a whole number from 1 to 8192"),
        (",".join(["r2"] * 65), "a chain has at most 64 steps, these are 65"),
        ("geopres:8,nested=yes", "true or false, got 'yes'"),
        ("geopres:8,nested=", "true or false, got ''"),
        ("geopres:[8,9]", r"whole number from 1 to 65536, got \[8, 9\]"),
        ('{"kind": "r2"', "not closed"),
        ('{"kind": "r2}', "not closed"),
        ("geopres:8]", "not closed"),
        ('r2,"geopres', "not closed"),
        ('{"kind" "r2"}', "is not JSON"),
        ("truncation", "truncation needs dimensions, as in truncation:128"),
        ("pca:8,dimensions=4", "pca is given dimensions twice"),
        ("int8:3", "int8 takes no parameter: write int8 alone"),
        ("pca:Dimensions=8", "pca has no parameter 'Dimensions'; did you mean dimensions. It takes dimensions, center"),
        ("[1, 2", "is not JSON"),
        ("whitening:shrinkage=auto", "must be ledoit-wolf or a number from 0 to 1, got 'auto'"),
    ],
)
def test_parse_steps_refuses_invalid_text_with_the_reason(text, reason):
    with pytest.raises(StepError, match=reason):
        parse_steps(text)


@pytest.mark.parametrize("specs", [[], [{}], [{"kind": "r2", "power": 2}], [{"kind": "geopres"}], [{"kind": ["r2"]}]])
def test_build_steps_refuses_json_that_defines_no_valid_step(specs):
    with pytest.raises(StepError):
        build_steps(specs)


@pytest.mark.parametrize("specs", [["r2"], {"kind": "r2"}, [None], [3]])
def test_build_steps_refuses_json_that_is_not_a_list_of_objects(specs):
    with pytest.raises(StepError):
        build_steps(specs)


def test_parse_steps_does_not_split_at_commas_within_json():
    with pytest.raises(StepError, match="no parameter 'note'"):
        parse_steps('{"kind": "r2", "note": "a, \\"b\\", [c"}')


def test_parse_steps_accepts_a_json_list_of_steps():
    text = '[{"kind": "r2"}, {"kind": "geopres", "dimensions": 8}]'
    assert [step.kind for step in parse_steps(text)] == ["r2", "geopres"]


def test_parse_steps_takes_a_bare_value_as_the_first_parameter_of_the_kind():
    assert parse_steps("abtt:3")[0].directions == 3
    assert parse_steps("rand:42")[0].seed == 42
    assert parse_steps("pca : 8")[0].dimensions == 8
