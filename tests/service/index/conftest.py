"""A direct evaluation of filters on metadata, which the backends must agree with."""

import random

import numpy as np
import pytest
from hypothesis import strategies as st

from lathe.service.index.reducer import read_artifact_files
from lathe.service.index.spec import IndexSpec
from lathe.transforms import Chain, parse_steps

NUMBERS = [0, 1, -1, 1.0, 0.5, -0.0, 2**53, 2**53 + 1, float(2**53), 2**63 - 1, -(2**63), 2**63, 2**64 - 1]
NUMBERS += [1.8e19, -1.8e19, 5e-324]
TEXTS = ["", "a", "B", "1", "1.0", "true", "null", "é", "z\u0000z", "😀", "\uffff"]
LONG = "m" * 250
LONG_TWIN = "m" * 249 + "x"  # differs only where filters no longer look
SCALARS = [*NUMBERS, *TEXTS, LONG, LONG_TWIN, True, False, None]
FIELDS = ["a", "b", "c.d", "c.e.f", "list", "c", "nowhere", "ab", "Ä. "]


def some_metadata(draw):
    """Draw nested metadata of an item, or None for an item without any."""

    def value(depth=0):
        kind = draw.random()
        if kind < 0.25 and depth < 3:
            return [value(depth + 1) for _ in range(draw.randrange(4))]
        if kind < 0.32 and depth < 2:
            return {"d": value(depth + 1)}
        return draw.choice(SCALARS)

    metadata = {name: value() for name in ("a", "b", "list", "ab", "Ä. ") if draw.random() < 0.7}
    if draw.random() < 0.6:
        metadata["c"] = {"d": value(), "e": {"f": value()}} if draw.random() < 0.8 else value()
    return metadata or None


def values_at(value, path):
    """Return all values of a field, which are several if a list lies on the path."""
    if isinstance(value, list):
        return [found for inner in value for found in values_at(inner, path)]
    if isinstance(value, dict):
        return values_at(value[path[0]], path[1:]) if path and path[0] in value else []
    return [] if path else [value]


def exists_at(value, path):
    """Return whether a path exists in metadata."""
    if isinstance(value, list):
        return any(exists_at(inner, path) for inner in value) if value else not path
    if isinstance(value, dict) and path:
        return path[0] in value and exists_at(value[path[0]], path[1:])
    return not path


def comparable(value):
    """Convert integers beyond 64 bits to floats, as the indexes store them."""
    return float(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def same(one, other):
    """Return whether two values are equal to a filter: 1 equals 1.0, but not True or "1"."""
    if any(value is None or isinstance(value, bool) for value in (one, other)):
        return one is other
    return isinstance(one, str) == isinstance(other, str) and comparable(one) == comparable(other)


def in_range(value, operator, wanted):
    """Return whether a value satisfies `gt`, `gte`, `lt` or `lte`. A value of another kind does not."""
    if value is None or isinstance(value, bool) or isinstance(value, str) != isinstance(wanted, str):
        return False
    one, other = comparable(value), comparable(wanted)
    return {"gt": one > other, "gte": one >= other, "lt": one < other, "lte": one <= other}[operator]


def satisfies_operator(values, operator, wanted):
    """Return whether any of a field's values satisfies a filter operator.

    `ne` and `nin` are true if no value satisfies `eq` or `in`.
    """
    if operator in ("ne", "nin"):
        return not satisfies_operator(values, "eq" if operator == "ne" else "in", wanted)
    if operator == "in":
        return any(same(value, one) for value in values for one in wanted)
    if operator == "eq":
        return any(same(value, wanted) for value in values)
    return any(in_range(value, operator, wanted) for value in values)


def satisfies_filter(metadata, given):
    """Return whether metadata satisfies a filter, by evaluating each part directly."""

    def part(key, value):
        plain = key.removeprefix("$")
        if plain == "and":
            return all(satisfies_filter(metadata, inner) for inner in value)
        if plain == "or":
            return any(satisfies_filter(metadata, inner) for inner in value)
        if plain == "not":
            return not satisfies_filter(metadata, value)
        path = key.split(".") if key != "Ä. " else [key]
        wanted = value if isinstance(value, dict) else {"eq": value}

        def one_holds(operator, wanted):
            if operator == "exists":
                return exists_at(metadata or {}, path) == wanted
            return satisfies_operator(values_at(metadata or {}, path), operator, wanted)

        return all(one_holds(name.removeprefix("$"), one) for name, one in wanted.items())

    return all(part(key, value) for key, value in given.items())


def with_dollar_variants(names):
    """Sample names with and without a leading `$`."""
    return st.sampled_from([*names, *(f"${name}" for name in names)])


def random_filters():
    """Return a hypothesis strategy for filters of every kind."""
    scalars = st.sampled_from(SCALARS)
    operator = st.one_of(
        st.tuples(with_dollar_variants(["eq", "ne"]), scalars),
        st.tuples(with_dollar_variants(["in", "nin"]), st.lists(scalars, min_size=1, max_size=5)),
        st.tuples(with_dollar_variants(["exists"]), st.booleans()),
        st.tuples(with_dollar_variants(["gt", "gte", "lt", "lte"]), st.sampled_from(NUMBERS + TEXTS)),
    )
    wanted = st.one_of(scalars, st.lists(operator, min_size=1, max_size=2).map(dict))
    return st.recursive(
        st.dictionaries(st.sampled_from(FIELDS), wanted, max_size=3),
        lambda inner: st.one_of(
            st.tuples(with_dollar_variants(["and", "or"]), st.lists(inner, min_size=1, max_size=3)).map(
                lambda pair: dict([pair])
            ),
            st.tuples(with_dollar_variants(["not"]), inner).map(lambda pair: dict([pair])),
        ),
        max_leaves=5,
    )


@pytest.fixture(scope="session")
def satisfies():
    """Return the function that says whether metadata satisfies a filter."""
    return satisfies_filter


@pytest.fixture(scope="session")
def filters():
    """Return a hypothesis strategy for filters of every kind."""
    return random_filters()


@pytest.fixture(scope="session")
def metadata_of():
    """Return a function that draws the metadata of this many items, the same each time."""
    return lambda items: [some_metadata(random.Random(seed)) for seed in range(items)]


@pytest.fixture(scope="session")
def scalars():
    """Return the awkward scalars."""
    return SCALARS


@pytest.fixture(scope="session")
def awkward():
    """Return the awkward numbers and the awkward texts."""
    return NUMBERS, [*TEXTS, LONG, LONG_TWIN]


@pytest.fixture(scope="session")
def biased():
    """Return a function that draws rows `(rows, 16)` with a common direction and a falling spectrum."""

    def draw(rows, seed=0):
        spread = np.random.default_rng(seed).normal(size=(rows, 16)) * np.arange(1, 17) ** -0.5
        return (spread + 0.7).astype(np.float32)

    return draw


@pytest.fixture(scope="session")
def chain_of(tmp_path_factory, biased):
    """Return a function that fits steps on 2,000 biased rows, each once, and returns chain and artifact."""
    made = {}

    def fit(steps, normalize=True):
        key = (steps, normalize)
        if key not in made:
            chain = Chain(parse_steps(steps), normalize).fit(biased(2000, 99))
            folder = tmp_path_factory.mktemp("chain") / "1"
            chain.save(folder)
            made[key] = chain, read_artifact_files(folder)
        return made[key]

    return fit


@pytest.fixture(scope="session")
def coded_spec():
    """Return a function that builds the settings of an index of 16 dimensions whose chain ends in codes."""

    def build(metric="cosine", **settings):
        return IndexSpec(None, None, 16, "raw", "small@1", 16, "coded", metric, **settings)

    return build
