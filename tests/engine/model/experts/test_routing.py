"""Which experts a token goes to, how much each counts, and which rows they get."""

import numpy as np
import pytest
import torch

from loraplex.engine.model.description.feed_forward import LinearSpec, RoutingSpec
from loraplex.engine.model.kernels.routing import route_reference, sum_experts_reference
from loraplex.engine.model.operations.cpu import OPERATIONS, SCORES

KERNELS = OPERATIONS.experts
NONE = torch.empty(0)


def routing(experts: int, chosen: int, scores: str, **fields: object) -> RoutingSpec:
    return RoutingSpec(
        router=LinearSpec("gate", 8, experts), experts_per_token=chosen, scores=scores, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


CASES = [
    routing(4, 1, "softmax"),
    routing(7, 3, "softmax", normalizes=True),
    routing(512, 10, "softmax", normalizes=True, scale=2.5),
    routing(32, 4, "softmax_of_chosen"),
    routing(16, 6, "sigmoid", normalizes=True, scale=1.8, num_groups=4, groups_per_token=2, correction="bias"),
    routing(64, 64, "sigmoid"),
    routing(24, 2, "softmax", num_groups=8, groups_per_token=3),
]


def drawn(case: RoutingSpec, tokens: int = 37, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, with ties in a token of three, and correction."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(tokens, case.num_experts, generator=generator)
    logits[::3] = logits[::3].round()
    correction = torch.randn(case.num_experts, generator=generator) if case.correction else NONE
    return logits, correction


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.scores}-{case.num_experts}-{case.num_groups}")
def test_choices_and_weights_are_those_of_torch(case: RoutingSpec) -> None:
    logits, correction = drawn(case)
    experts, weights = KERNELS.route(logits, correction, None, case)
    arguments = SCORES[case.scores], case.experts_per_token, case.normalizes, case.scale
    wanted, exact = route_reference(
        logits.double(), correction.double(), *arguments, case.num_groups, case.groups_per_token
    )
    assert torch.equal(experts, wanted)
    torch.testing.assert_close(weights.double(), exact, rtol=3e-6, atol=1e-7)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.scores}-{case.num_experts}-{case.num_groups}")
def test_a_token_gets_the_same_bits_alone_and_among_others(case: RoutingSpec) -> None:
    logits, correction = drawn(case, tokens=301)
    experts, weights = KERNELS.route(logits, correction, None, case)
    for token in (0, 1, 150, 299, 300):
        alone, own = KERNELS.route(logits[token : token + 1].clone(), correction, None, case)
        assert torch.equal(alone[0], experts[token]) and torch.equal(own[0], weights[token])


@pytest.mark.parametrize("tokens", [0, 1, 5, 300])
def test_each_expert_has_the_rows_of_its_tokens_in_their_order(tokens: int) -> None:
    case = routing(9, 4, "softmax")
    experts, weights = KERNELS.route(*drawn(case, tokens), None, case)
    rows = KERNELS.group(experts, 9)
    pairs = np.arange(tokens * 4)
    wanted = [pairs[experts.flatten().numpy() == expert] for expert in range(9)]
    assert rows.pairs.tolist() == [pair for own in wanted for pair in own]
    assert rows.starts.diff().tolist() == [len(own) for own in wanted]
    assert rows.places[rows.pairs].tolist() == list(range(tokens * 4))
    assert [last - first for _, first, last in rows.touched()] == [len(own) for own in wanted if len(own)]
    y = torch.randn(tokens * 4, 6)
    torch.testing.assert_close(
        KERNELS.add_up(y, rows, weights), sum_experts_reference(y, rows.places.view(-1, 4), weights)
    )


def test_wrong_counts_are_refused_in_words() -> None:
    for fields, words in (
        ({"chosen": 5}, "each token has 5 of 4 experts"),
        ({"chosen": 1, "num_groups": 3}, "groups must be of one size"),
        ({"chosen": 4, "num_groups": 2, "groups_per_token": 1}, "too few for 4 experts"),
    ):
        with pytest.raises(ValueError, match=words):
            routing(4, scores="softmax", **fields)  # type: ignore[arg-type]
