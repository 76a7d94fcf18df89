"""The chat format: special tokens, the template users' software runs, and the same in Python for training text."""

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = [PAD, BEGIN, END, *(f"<|{role}|>" for role in ROLES)]

TEMPLATE = (
    "{{- bos_token -}}"
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] | trim + eos_token -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)

Message = dict[str, str]


def render(messages: list[Message], *, answer_next: bool = False) -> str:
    """What TEMPLATE gives for these messages, the begin token included."""
    turns = [f"<|{message['role']}|>{message['content'].strip()}{END}" for message in messages]
    return BEGIN + "".join(turns) + ("<|assistant|>" if answer_next else "")


def exchange(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
