"""What the OpenAI API answers, as types that a document can be made of."""

from typing import Any, Literal, NotRequired, TypedDict

StopReason = int | str | None
PromptLogprobs = list[dict[str, Any] | None]


class PromptDetails(TypedDict):
    cached_tokens: int


class CompletionDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: NotRequired[CompletionDetails]


class TokenChance(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class ChatToken(TokenChance):
    top_logprobs: list[TokenChance]


class ChatLogprobs(TypedDict):
    content: list[ChatToken]
    refusal: None


class MadeFunction(TypedDict):
    name: str
    arguments: str


class MadeCall(TypedDict):
    id: str
    type: Literal["function"]
    function: MadeFunction


class Message(TypedDict):
    """`reasoning` is `reasoning_content` by another name."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning_content: NotRequired[str]
    reasoning: NotRequired[str]
    tool_calls: NotRequired[list[MadeCall]]
    function_call: NotRequired[MadeFunction]


class ChatChoice(TypedDict):
    index: int
    message: Message
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: StopReason


class ChatAnswer(TypedDict):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_logprobs: NotRequired[PromptLogprobs]


class CompletionLists(TypedDict):
    """Parallel lists, one entry for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLists | None
    finish_reason: str
    stop_reason: StopReason
    prompt_logprobs: PromptLogprobs | None


class CompletionAnswer(TypedDict):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage


class ModelPermission(TypedDict):
    id: str
    object: Literal["model_permission"]
    created: int
    allow_create_engine: bool
    allow_sampling: bool
    allow_logprobs: bool
    allow_search_indices: bool
    allow_view: bool
    allow_fine_tuning: bool
    organization: str
    group: str | None
    is_blocking: bool


class Model(TypedDict):
    """`root` is an adapter's digest or the base's source, `parent` an adapter's base. `serving_profile`, of adapters:
    what is said for requests that do not say it; null: nothing is."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: int
    permission: list[ModelPermission]
    serving_profile: NotRequired[list[str] | None]


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[Model]


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    unk_token: str | None
    tokenizer_class: str
    chat_template: str | None
    model_max_length: int
    vocab_size: int


class Load(TypedDict):
    server_load: int


class Ready(TypedDict):
    ready: bool
    reasons: list[str]
    warnings: list[str]


class ServerVersion(TypedDict):
    version: str
