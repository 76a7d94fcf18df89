from hypothesis import given, settings
from hypothesis import strategies as st

from loraplex.engine.scheduler.activation import find_start

TOKENS = st.lists(st.integers(0, 2), max_size=12)


@settings(max_examples=500)
@given(TOKENS, st.lists(st.integers(0, 2), min_size=1, max_size=4))
def test_the_last_occurrence_is_found_or_none(prompt: list[int], sought: list[int]) -> None:
    places = [start for start in range(len(prompt)) if prompt[start : start + len(sought)] == sought]
    assert find_start(prompt, sought) == (places[-1] if places else None)


@given(TOKENS)
def test_what_needs_no_invocation_acts_from_the_first_token_on(prompt: list[int]) -> None:
    assert find_start(prompt, ()) == 0
