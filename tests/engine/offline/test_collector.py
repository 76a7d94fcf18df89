import pytest

from loraplex.engine.offline.collector import Collector
from loraplex.engine.protocol import FinishReason, GenerateRequest, TokenLogprob, Tokens
from loraplex.engine.sampling_params import SamplingParams
from loraplex.engine.text.tokenizer import Tokenizer
from tests.checkpoints import make_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(make_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def collector(tokenizer: Tokenizer, params: SamplingParams) -> Collector:
    request = GenerateRequest(request_id="r", prompt_token_ids=[5, 6], params=params)
    return Collector(request, "prompt", "name", tokenizer)


def tokens(token_ids: list[int], finish: FinishReason | None = None, index: int = 0, **fields: object) -> Tokens:
    return Tokens(request_id="r", index=index, token_ids=token_ids, finish_reason=finish, **fields)  # type: ignore[arg-type]


def test_choices_grow_apart_and_end_apart(tokenizer: Tokenizer) -> None:
    gathered = collector(tokenizer, SamplingParams(n=2))
    a, b = tokenizer.encode("a", False), tokenizer.encode("b", False)
    gathered.take(tokens(a, cached_tokens=1))
    gathered.take(tokens(b, FinishReason.LENGTH, index=1))
    assert not gathered.finished
    gathered.take(tokens(a, FinishReason.LENGTH))
    output = gathered.output()
    assert gathered.finished and output.finished
    assert [(choice.text, choice.finish_reason) for choice in output.outputs] == [("aa", "length"), ("b", "length")]
    assert (output.num_cached_tokens, output.adapter, output.prompt) == (1, "name", "prompt")


def test_the_end_token_is_an_id_but_no_text(tokenizer: Tokenizer) -> None:
    gathered = collector(tokenizer, SamplingParams())
    a, b = tokenizer.encode("a", False), tokenizer.encode("b", False)
    gathered.take(tokens(a + b, FinishReason.STOP, stop_reason=b[0]))
    choice = gathered.output().outputs[0]
    assert (choice.text, choice.token_ids, choice.finish_reason, choice.stop_reason) == ("a", a + b, "stop", b[0])


def test_a_stop_string_ends_the_choice_whatever_the_engine_still_sends(tokenizer: Tokenizer) -> None:
    gathered = collector(tokenizer, SamplingParams(stop=["#"], logprobs=1))
    ids = tokenizer.encode("a#b", False)
    entries = [TokenLogprob(token_id, -0.5, 1, [(token_id, -0.5)]) for token_id in ids]
    gathered.take(tokens(ids, logprobs=entries))
    gathered.take(tokens(ids, FinishReason.LENGTH, logprobs=entries))
    choice = gathered.output().outputs[0]
    assert (choice.text, choice.token_ids, choice.stop_reason) == ("a", ids[:2], "#")
    assert choice.finish_reason == "stop"
    assert choice.logprobs is not None and len(choice.logprobs) == 2 and choice.cumulative_logprob == -1.0


def test_logprobs_name_the_token_and_the_most_likely_ones(tokenizer: Tokenizer) -> None:
    gathered = collector(tokenizer, SamplingParams(logprobs=2, prompt_logprobs=0))
    a, b = tokenizer.encode("a", False)[0], tokenizer.encode("b", False)[0]
    entry = TokenLogprob(a, -2.0, 5, [(b, -0.1), (7, -0.4)])
    gathered.take(tokens([a], FinishReason.LENGTH, logprobs=[entry], prompt_logprobs=[None, TokenLogprob(b, -1.0, 2)]))
    output = gathered.output()
    logprobs = output.outputs[0].logprobs
    assert logprobs is not None
    assert {i: (lp.logprob, lp.rank) for i, lp in logprobs[0].items()} == {a: (-2.0, 5), b: (-0.1, 1), 7: (-0.4, 2)}
    assert logprobs[0][a].decoded_token == "a"
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    assert output.prompt_logprobs[1] is not None and list(output.prompt_logprobs[1]) == [b]
