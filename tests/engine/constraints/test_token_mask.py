from loraplex.engine.sampling.token_mask import TokenMask

NONE: frozenset[int] = frozenset()


def learned(mask: TokenMask, tokens: set[int], complete: bool, position: int = 0) -> set[int]:
    bits = sum(1 << token for token in tokens)
    mask.learn(bits.to_bytes(3, "little"), complete, position)
    assert mask.bits is not None
    return {token for token in range(8 * len(mask.bits)) if mask.bits[token // 8] >> token % 8 & 1}


def test_end_tokens_are_allowed_where_the_text_may_end() -> None:
    mask = TokenMask(frozenset({2, 30}), NONE, 0)
    assert learned(mask, {5, 9}, complete=False) == {5, 9}
    assert learned(mask, {5}, complete=True) == {5, 2, 30}


def test_end_tokens_wait_for_the_least_length_unless_nothing_else_may_follow() -> None:
    mask = TokenMask(frozenset({2}), NONE, 4)
    assert learned(mask, {5}, complete=True, position=3) == {5}
    assert learned(mask, {5}, complete=True, position=4) == {2, 5}
    assert learned(mask, set(), complete=True, position=0) == {2}


def test_ignored_end_tokens_end_only_what_may_not_go_on() -> None:
    mask = TokenMask(frozenset({2, 6}), frozenset({2}), 0)
    assert learned(mask, {5}, complete=True) == {5, 6}
    assert learned(TokenMask(frozenset({2}), frozenset({2}), 0), set(), complete=True) == {2}


def test_a_stop_token_that_belongs_to_the_text_waits_as_well() -> None:
    mask = TokenMask(frozenset({5}), NONE, 2)
    assert learned(mask, {5, 7}, complete=False) == {7}
    assert learned(mask, {5}, complete=False) == {5}
    mask.forget()
    assert mask.bits is None


def test_a_stop_token_that_belongs_to_the_text_does_not_cut_it() -> None:
    mask = TokenMask(frozenset({5}), NONE, 0)
    assert learned(mask, {5, 7}, complete=False) == {7}
    assert learned(mask, {5}, complete=False) == {5}
    assert learned(mask, {5, 7}, complete=True) == {5, 7}
