import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex.engine.prefix import block_key, encode, root_hash
from loraplex.engine.protocol import AdapterRef

Field = str | bytes | int | float | None
Identity = tuple[str, str, tuple[AdapterRef, ...], tuple[int, ...]]

FIELDS = st.one_of(
    st.none(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
)


def same(left: Field, right: Field) -> bool:
    """Equal in type and value; 0.0 and -0.0 are two values."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return type(left) is type(right) and left == right


@settings(max_examples=2000, deadline=None)
@given(st.lists(FIELDS, max_size=5), st.lists(FIELDS, max_size=5))
def test_rows_of_fields_encode_alike_only_if_they_are_alike(left: list[Field], right: list[Field]) -> None:
    alike = len(left) == len(right) and all(map(same, left, right))
    assert (encode(*left) == encode(*right)) == alike


def test_borders_and_types_of_fields_are_part_of_the_encoding() -> None:
    rows: list[tuple[Field, ...]] = [
        (), ("",), (None,), ("", ""), ("ab",), ("a", "b"), (b"ab",), (1,), (1.0,), ("1",), (b"1",), (0,), (0.0,),
        (-0.0,), ("n", "\0" * 8), ("a\0", "b"), ("a", "\0b"), ("\ud800",), ("\ud801",),
    ]  # fmt: skip
    assert len({encode(*row) for row in rows}) == len(rows)


def draw_identity(random: random.Random) -> Identity:
    """From so small a world that fields often agree, run into each other, and trade places."""
    words = ["", "a", "b", "ab", "1", "1.0", "None"]
    adapters = tuple(
        AdapterRef(random.choice(words), random.choice([1.0, 2.0, 0.5])) for _ in range(random.choice([0, 0, 1, 1, 2]))
    )
    tokens = tuple(random.randrange(3) for _ in range(random.randint(1, 8)))
    return random.choice(words), random.choice(words), adapters, tokens


def chain_hash(identity: Identity, block_size: int = 2) -> bytes:
    salt, fingerprint, adapters, tokens = identity
    parent = root_hash(salt, fingerprint, adapters)
    for start in range(0, len(tokens), block_size):
        parent = block_key(parent, tokens[start : start + block_size]).hash
    return parent


def test_a_hundred_thousand_pairs_collide_only_when_equal() -> None:
    source = random.Random(1)
    equal = 0
    for _ in range(100_000):
        left, right = draw_identity(source), draw_identity(source)
        assert (chain_hash(left) == chain_hash(right)) == (left == right), (left, right)
        equal += left == right
    assert equal > 0


def test_each_field_changes_the_key() -> None:
    base = ("tenant", "base", (AdapterRef("digest", 1.0),), (1, 2, 3, 4))
    changes = [
        base,
        ("other", *base[1:]),
        (base[0], "other", *base[2:]),
        (*base[:2], (AdapterRef("other", 1.0),), base[3]),
        (*base[:2], (AdapterRef("digest", 2.0),), base[3]),
        (*base[:2], (AdapterRef("digest", 1.0), AdapterRef("other", 1.0)), base[3]),
        (*base[:2], (), base[3]),
        (*base[:3], (1, 2, 4, 3)),
        (*base[:3], (2, 2, 3, 4)),
    ]
    assert len({chain_hash(change) for change in changes}) == len(changes)


def test_adapter_and_salt_of_the_same_name_stay_apart() -> None:
    assert root_hash("x", "base", ()) != root_hash("", "base", [AdapterRef("x")])
