"""PooledCollector: the engine's one message of a request for a vector, as a PoolingRequestOutput."""

from ...pooling.vectors import from_wire
from ...protocol import FinishReason, GenerateRequest, RequestFailed, Tokens
from ..lora_request import LoRARequest
from ..prompts import Adapter
from .outputs import PoolingOutput, PoolingRequestOutput


class PooledCollector:
    def __init__(
        self, request: GenerateRequest, adapter: Adapter | None, lora_request: LoRARequest | None = None
    ) -> None:
        self.request = request
        self.failure: RequestFailed | None = None
        self._adapter, self._lora_request = adapter, lora_request
        self._message: Tokens | None = None

    @property
    def finished(self) -> bool:
        return self._message is not None or self.failure is not None

    @property
    def num_tokens(self) -> int:
        """Of the prompt, once it has ended."""
        return len(self.request.prompt_token_ids)

    def take(self, message: Tokens) -> bool:
        """False: the engine knows that it has ended."""
        if message.finish_reason is FinishReason.ABORT:
            self.fail(RequestFailed(request_id=message.request_id, kind="aborted", message="it was aborted"))
        elif message.finish_reason is not None:
            self._message = message
        return False

    def fail(self, failure: RequestFailed) -> None:
        self.failure = failure

    def output(self) -> PoolingRequestOutput:
        """ValueError for what was wrong with the request, RuntimeError where it failed for another reason."""
        if self.failure is not None:
            kind = ValueError if self.failure.kind == "invalid" else RuntimeError
            raise kind(f"request {self.request.request_id} failed: {self.failure.message}")
        assert self._message is not None and self._message.pooled is not None, "it has not ended"
        return PoolingRequestOutput(
            request_id=self.request.request_id,
            outputs=PoolingOutput(from_wire(self._message.pooled)),
            prompt_token_ids=self.request.prompt_token_ids,
            num_cached_tokens=self._message.cached_tokens,
            adapter=self._adapter,
            lora_request=self._lora_request,
        )
