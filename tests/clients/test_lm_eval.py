"""lm-eval: log-likelihoods over completions, with our tokenizer or a local one, and chats."""

from typing import Any

import pytest
from lm_eval.api.instance import Instance
from lm_eval.models import openai_completions

from .conftest import DEMO_MODEL, HELLO, QUERY, Address


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, address: Address) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", address.key)


def asked(kind: str, *arguments: Any) -> Any:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_loglikelihoods_are_the_same_with_both_tokenizers(address: Address) -> None:
    found = []
    for backend, tokenizer in (("remote", None), ("huggingface", str(DEMO_MODEL))):
        model = openai_completions.LocalCompletionsAPI(
            model="demo",
            base_url=f"{address.v1}/completions",
            tokenizer_backend=backend,
            tokenizer=tokenizer,
            auth_token=address.key,
            header={"Authorization": f"Bearer {address.key}"},
        )
        texts = [asked("loglikelihood", "The dog", " sleeps"), asked("loglikelihood", "The dog", " xyz")]
        found.append([likelihood for likelihood, _ in model.loglikelihood(texts)])
    assert found[0] == pytest.approx(found[1], abs=1e-4) and found[0][0] > found[0][1]


def test_chats(address: Address) -> None:
    model = openai_completions.LocalChatCompletion(
        model="sql", base_url=f"{address.v1}/chat/completions", eos_string="<|end|>"
    )
    chat = model.apply_chat_template(HELLO)
    bounds = {"until": ["\n"], "max_gen_toks": 40, "temperature": 0}
    assert model.generate_until([asked("generate_until", chat, bounds)]) == [QUERY]
