"""Bodies of the OpenAI API as clients send them, vLLM's additions included. Null members are dropped before."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from loraplex.engine.protocol import MAX_ADAPTERS, BeamSearch
from loraplex.engine.sampling_params import MAX_LOGPROBS, MAX_N, SamplingParams
from loraplex.registry.adapters.routes import Asker

from ..http.errors import invalid
from .response_format import ResponseFormat, StructuredFields, asked_form
from .tools.tools import MAX_TOOLS, CalledFunction, FunctionDefinition, FunctionName, Tool, ToolCall, ToolChoice

MAX_MESSAGES = 4096
DEFAULT_COMPLETION_TOKENS = 16
Name = Annotated[str, Meta(min_length=1, max_length=300)]
TokenId = Annotated[int, Meta(ge=0, lt=2**31)]
Choices = Annotated[int, Meta(ge=1, le=MAX_N)]
Tops = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Limit = Annotated[int, Meta(ge=0, lt=2**31)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class AdapterPart(msgspec.Struct, forbid_unknown_fields=True):
    """One of several adapters whose deltas are added to the base."""

    name: Name
    scale: Annotated[float, Meta(ge=-100.0, le=100.0)] = 1.0


class EndUser(msgspec.Struct, kw_only=True):
    """On whose behalf a client asks."""

    user: str | None = None
    safety_identifier: str | None = None
    """The newer name of `user`."""

    def asker(self, actor: str, request_id: str | None = None) -> Asker:
        """Whom an alias routes: the end user, where the client names one, else the key. `request_id` None: the model
        answers nothing."""
        end_user = self.user or self.safety_identifier
        return Asker(f"end user {end_user}" if end_user else actor, request_id)


class Adapted(EndUser, kw_only=True):
    """What may run with several adapters."""

    adapters: Annotated[list[AdapterPart], Meta(min_length=1, max_length=MAX_ADAPTERS)] | None = None
    """With the base as `model`: the sum of these instead of one adapter."""

    def adapter_scales(self) -> dict[str, float] | None:
        """By name; None where `model` alone says what runs. Raises ApiError for a name that stands twice."""
        if self.adapters is None:
            return None
        scales = {part.name: part.scale for part in self.adapters}
        if len(scales) < len(self.adapters):
            raise invalid("adapters names an adapter twice; add up its scales.", "adapters")
        return scales


class SamplingFields(Adapted, kw_only=True):
    """What all generating endpoints share: what runs, and how tokens are drawn."""

    model: Name
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] = 1.0
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, lt=2**31)] = 0
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100.0)] = 1.0
    logit_bias: dict[str, Annotated[float, Meta(ge=-100.0, le=100.0)]] | None = None
    allowed_token_ids: list[TokenId] | None = None
    seed: Int64 | None = None
    min_tokens: Limit = 0
    stop: str | list[str] = []
    stop_token_ids: list[TokenId] = []
    bad_words: list[str] = []
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    structured_outputs: StructuredFields | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    """Older names of what structured_outputs has."""
    stream: bool = False
    priority: Annotated[int, Meta(ge=-(2**31), lt=2**31)] = 0
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class GenerationFields(SamplingFields, kw_only=True):
    """What chat and completions share."""

    max_tokens: Limit | None = None
    n: Choices = 1
    prompt_logprobs: Tops | None = None
    use_beam_search: bool = False
    """The `n` most likely outputs instead of drawn ones; the two below say how they are ranked."""
    length_penalty: Annotated[float, Meta(ge=-10.0, le=10.0)] = 1.0
    early_stopping: bool | Literal["never"] = False
    response_format: ResponseFormat | None = None
    stream_options: StreamOptions | None = None

    def sampling(self, max_tokens: int | None, logprobs: int | None, prompt_logprobs: int | None) -> SamplingParams:
        """Not yet verified against the vocabulary. ParameterError for what no model can run."""
        return SamplingParams(
            n=self.n,
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=self.repetition_penalty,
            logit_bias=None if self.logit_bias is None else _token_keys(self.logit_bias),
            allowed_token_ids=self.allowed_token_ids,
            seed=self.seed,
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            stop=[self.stop] if isinstance(self.stop, str) else self.stop,
            stop_token_ids=self.stop_token_ids,
            bad_words=self.bad_words,
            ignore_eos=self.ignore_eos,
            include_stop_str_in_output=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            structured_outputs=asked_form(self),
        )

    def beam_search(self) -> BeamSearch | None:
        """ApiError for rankings of outputs that are drawn."""
        if self.use_beam_search:
            return BeamSearch(length_penalty=self.length_penalty, early_stopping=self.early_stopping)
        for name, value, neutral in (
            ("length_penalty", self.length_penalty, 1.0),
            ("early_stopping", self.early_stopping, False),
        ):
            if value != neutral:
                raise invalid(f"{name} needs use_beam_search: true.", name)
        return None

    def wants_usage(self) -> bool:
        """Whether a stream ends with a chunk of usage."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def wants_running_usage(self) -> bool:
        """Whether every chunk of a stream carries the usage so far."""
        return self.wants_usage() and bool(self.stream_options and self.stream_options.continuous_usage_stats)


class ContentPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct, omit_defaults=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: CalledFunction | None = None
    """The older way of one of `tool_calls`."""
    reasoning_content: str | None = None
    """For templates that know it, and `reasoning`."""
    reasoning: str | None = None
    prefix: bool | None = None
    """Of other servers: the answer goes on where the message ends; `partial` too."""
    partial: bool | None = None


class ChatRequest(GenerationFields, kw_only=True):
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    max_completion_tokens: Limit | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[FunctionDefinition], Meta(max_length=MAX_TOOLS)] | None = None
    """The older way of `tools`, and `function_call` that of `tool_choice`: one call, told as `function_call`."""
    function_call: Literal["none", "auto"] | FunctionName | None = None
    logprobs: bool = False
    top_logprobs: Tops | None = None
    separate_reasoning: bool = True
    """SGLang's: false leaves reasoning in the content, as the model wrote it."""
    include_reasoning: bool = True
    """vLLM's: false leaves it out."""


class CompletionRequest(GenerationFields, kw_only=True):
    prompt: str | list[str | list[TokenId] | TokenId]
    echo: bool = False
    logprobs: Tops | None = None
    add_special_tokens: bool = True


class TokenizeChat(ChatRequest, kw_only=True):
    return_token_strs: bool = False


class TokenizeText(Adapted, kw_only=True):
    prompt: str
    model: Name | None = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class Detokenize(Adapted, kw_only=True):
    tokens: list[TokenId]
    model: Name | None = None


def _token_keys(biases: dict[str, float]) -> dict[int, float]:
    for key in biases:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise invalid(f"logit_bias must map token ids to numbers, got the key {key[:40]!a}.", "logit_bias")
    by_token = {int(key): bias for key, bias in biases.items()}
    if len(by_token) < len(biases):
        raise invalid("logit_bias names a token twice; write ids without leading zeros.", "logit_bias")
    return by_token
