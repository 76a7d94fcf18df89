import math
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex.engine.kv_cache.prefix import Acting, encode
from loraplex.engine.protocol import AdapterRef, GenerateRequest
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.scheduler.sequence import Request

Field = str | bytes | int | float | None
Identity = tuple[str, str, tuple[Acting, ...], tuple[int, ...]]
BLOCK_SIZE = 2

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


@settings(max_examples=2000)
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
    tokens = tuple(random.randrange(3) for _ in range(random.randint(1, 8)))
    adapters = tuple(
        Acting(
            random.choice(words), random.choice([1.0, 2.0, 0.5]), random.choice([0, 0, random.randrange(len(tokens))])
        )
        for _ in range(random.choice([0, 0, 1, 1, 2]))
    )
    return random.choice(words), random.choice(words), adapters, tokens


def content(identity: Identity, end: int) -> Identity:
    """All that keys and values of the tokens before `end` depend on."""
    salt, fingerprint, adapters, tokens = identity
    return salt, fingerprint, tuple(acting for acting in adapters if acting.start < end), tokens[:end]


def chain_keys(identity: Identity) -> list[bytes]:
    salt, fingerprint, adapters, tokens = identity
    refs = [AdapterRef(acting.digest, acting.scale) for acting in adapters]
    message = GenerateRequest(
        request_id="r", prompt_token_ids=list(tokens), params=SamplingParams(), adapters=refs, cache_salt=salt
    )
    request = Request(message, 0, 0.0, max_length=99, eos_token_ids=frozenset(), fingerprint=fingerprint)
    request.starts = tuple(acting.start for acting in adapters)
    return [key.hash for key in request.sequences[0].hash_blocks(len(tokens) // BLOCK_SIZE, BLOCK_SIZE)]


def test_pairs_of_chains_share_exactly_the_blocks_that_are_the_same() -> None:
    """Block by block: the same key if and only if the keys and values in it are the same."""
    source = random.Random(1)
    shared_by_some, equal = 0, 0
    for _ in range(20_000):
        left, right = draw_identity(source), draw_identity(source)
        if source.random() < 0.3:
            right = (*left[:2], right[2], left[3])
        for number, pair in enumerate(zip(chain_keys(left), chain_keys(right), strict=False), 1):
            same_content = content(left, number * BLOCK_SIZE) == content(right, number * BLOCK_SIZE)
            assert (pair[0] == pair[1]) == same_content, (left, right)
            equal += same_content
            shared_by_some += same_content and left[2] != right[2]
    assert equal > 300 and shared_by_some > 300


def test_each_field_changes_the_key() -> None:
    base: Identity = ("tenant", "base", (Acting("digest", 1.0, 0),), (1, 2, 3, 4))
    changes: list[Identity] = [
        base,
        ("other", *base[1:]),
        (base[0], "other", *base[2:]),
        (*base[:2], (Acting("other", 1.0, 0),), base[3]),
        (*base[:2], (Acting("digest", 2.0, 0),), base[3]),
        (*base[:2], (Acting("digest", 1.0, 1),), base[3]),
        (*base[:2], (Acting("digest", 1.0, 2),), base[3]),
        (*base[:2], (Acting("digest", 1.0, 0), Acting("other", 1.0, 0)), base[3]),
        (*base[:2], (Acting("other", 1.0, 0), Acting("digest", 1.0, 0)), base[3]),
        (*base[:2], (), base[3]),
        (*base[:3], (1, 2, 4, 3)),
        (*base[:3], (2, 2, 3, 4)),
    ]
    assert len({chain_keys(change)[-1] for change in changes}) == len(changes)


def test_an_adapter_that_begins_late_leaves_the_blocks_before_it_to_the_base() -> None:
    tokens = tuple(range(10))
    base, late = (chain_keys(("", "base", adapters, tokens)) for adapters in ((), (Acting("digest", 1.0, 5),)))
    assert [mine == theirs for mine, theirs in zip(base, late, strict=True)] == [True, True, False, False, False]


def test_adapter_and_salt_of_the_same_name_stay_apart() -> None:
    salted, adapted = ("x", "base", (), (1, 2)), ("", "base", (Acting("x", 1.0, 0),), (1, 2))
    assert chain_keys(salted) != chain_keys(adapted)
