"""Our rendering equals transformers', in a sandbox and within bounds."""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from loraplex.web.chat_templates.chat_template import ChatTemplate, TemplateFailure

CHATML = (
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content | trim + '<|im_end|>' }}\n"
    "{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|im_start|>assistant\\n' }}\n{%- endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "bos and alternation": (
        "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('Roles must alternate') }}{% endif %}"
        "[{{ m['role'] | upper }}] {{ m['content'] }}{{ eos_token }}{% endfor %}"
    ),
    "json and namespaces": (
        "{% set ns = namespace(count=0) %}{% for m in messages %}{% set ns.count = ns.count + 1 %}"
        "{{ m | tojson }}{{ m | tojson(indent=2) }}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ ns.count }}"
    ),
    "generation tag": (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}\n{% endfor %}"
    ),
    "blocks and whitespace": (
        "  {% if true %}\n  line\n    {% endif %}\n{% for m in messages %}\n  {{ m.content }}\n  {% endfor %}\nend\n"
    ),
    "dates and variables": (
        "{{ strftime_now('%Y') }}{% if enable_thinking is defined and enable_thinking %}<think>{% endif %}"
        "{% if tools is not none %}tools{% endif %}{% macro say(m) %}{{ m.content }};{% endmacro %}"
        "{% for m in messages %}{{ say(m) }}{% endfor %}"
    ),
}
CHATS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello <b>&amp; 'quotes' \"double\"</b>"}],
    [{"role": "user", "content": " spaces \n"}, {"role": "assistant", "content": "Zürich 😀 "}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "{{ 7 * 7 }}{% raw %}"}],
]
NAMED = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}


@pytest.fixture(scope="module")
def reference(checkpoint: Path) -> Any:
    return PreTrainedTokenizerFast.from_pretrained(checkpoint)


@pytest.mark.parametrize("add_generation_prompt", [False, True])
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize("name", TEMPLATES)
def test_equals_transformers(
    reference: Any, name: str, chat: list[dict[str, Any]], add_generation_prompt: bool
) -> None:
    ours = ChatTemplate(TEMPLATES[name], NAMED, 10_000).render(
        chat, add_generation_prompt, False, {"enable_thinking": True}
    )
    theirs = reference.apply_chat_template(
        chat,
        chat_template=TEMPLATES[name],
        tokenize=False,
        add_generation_prompt=add_generation_prompt,
        enable_thinking=True,
    )
    assert ours == theirs


@pytest.mark.parametrize("name", ["chatml", "generation tag", "bos and alternation"])
@pytest.mark.parametrize("content", ["I was saying", "trailing space ", " both "])
def test_continuation_equals_transformers(reference: Any, name: str, content: str) -> None:
    chat = [{"role": "user", "content": "go"}, {"role": "assistant", "content": content}]
    ours = ChatTemplate(TEMPLATES[name], NAMED, 10_000).render(chat, False, continue_final_message=True)
    theirs = reference.apply_chat_template(
        chat, chat_template=TEMPLATES[name], tokenize=False, continue_final_message=True
    )
    assert ours == theirs


def test_the_templates_own_words_reach_the_client() -> None:
    with pytest.raises(TemplateFailure, match="Roles must alternate"):
        ChatTemplate(TEMPLATES["bos and alternation"], NAMED, 1000).render([{"role": "assistant", "content": "x"}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ lipsum.__globals__ }}",
        "{{ cycler.__init__.__globals__.os }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ (messages | attr('__class__')).__subclasses__() }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages.append(1) }}",
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ messages[99].content.x }}",
        "{{ 1 / 0 }}",
        "{{ 'a' + 1 }}",
        "{% include 'x' %}",
    ],
)
def test_nothing_gets_out_of_the_sandbox(source: str) -> None:
    try:
        text = ChatTemplate(source, NAMED, 1000).render([{"role": "user", "content": "hi"}])
    except TemplateFailure:
        return
    assert "__" not in text
    assert "class" not in text
    assert "module" not in text


def test_endless_output_is_cut() -> None:
    source = "{% for a in range(90000) %}{% for b in range(90000) %}{{ b }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateFailure, match="longer than 1000 characters"):
        ChatTemplate(source, NAMED, 1000).render([])


def test_endless_rendering_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loraplex.web.chat_templates.chat_template.MAX_SECONDS", 0.05)
    source = "{% for a in range(90000) %}{% for b in range(90000) %}{{ '' }}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateFailure, match="longer than"):
        ChatTemplate(source, NAMED, 1000).render([])


def test_a_broken_template_is_named_at_start() -> None:
    with pytest.raises(ValueError, match="line 2"):
        ChatTemplate("\n{% for %}", NAMED, 1000)
