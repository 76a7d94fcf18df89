"""TextProcessorCache: what adapters bring for text, made when it is first needed and kept while there is room."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import replace
from typing import Final

import msgspec
from sqlalchemy.exc import SQLAlchemyError

from loraplex.engine.protocol import AddedToken
from loraplex.engine.text.tokenizer import Tokenizer
from loraplex.registry.adapters.profiles import ServingProfile
from loraplex.registry.files.adapter_tokenizer import AdapterTokenizer
from loraplex.registry.files.tokenizers import Tokenizers

from ..adapter_tokenizers.added_tokens import as_library_token
from ..chat_templates.pool import TemplateWorkers
from ..http.errors import ApiError, overloaded
from .text_processor import Template, TextProcessor, UntrustedTemplate, trusted_templates
from .token_text import TokenText

MOST_KEPT: Final = 64

logger = logging.getLogger(__name__)


class TextProcessorCache:
    """By the digest of an adapter's tokenizer. A request keeps the one it began with.

    `end_token_ids` are those that the engine ends answers at; `allowed` is the operator's switch.
    """

    def __init__(
        self, base: TextProcessor, end_token_ids: Collection[int], tokenizers: Tokenizers, max_chars: int, allowed: bool
    ) -> None:
        self.base = base
        self.allowed = allowed
        self._workers, self._trials = TemplateWorkers(), TemplateWorkers()
        self._end_token_ids, self._tokenizers = frozenset(end_token_ids), tokenizers
        self._max_chars = max_chars
        self._kept: OrderedDict[str, TextProcessor] = OrderedDict()

    async def of(self, digest: str | None) -> TextProcessor:
        """None: the base's. ApiError where the operator allows adapters no tokenizers (any more)."""
        if digest is None:
            return self.base
        if not self.allowed:
            raise _not_allowed()
        if digest not in self._kept:
            self._kept[digest] = await self._made(digest)
        self._kept.move_to_end(digest)
        if len(self._kept) > MOST_KEPT:
            self._kept.popitem(last=False)
        return self._kept[digest]

    def with_profile(
        self, text_processor: TextProcessor, profile: ServingProfile, owner: str, trial: bool = False
    ) -> TextProcessor:
        """`text_processor` with what the profile says of chats; its chat template belongs to `owner`.

        `trial`: rendered where no request waits. ApiError where the operator allows no chat templates of adapters.
        """
        template, tool_template, source = text_processor.template, text_processor.tool_template, profile.chat_template
        if source is not None:
            if not self.allowed:
                raise _not_allowed()
            workers, named_tokens = self._trials if trial else self._workers, text_processor.tokenizer.named_tokens
            template = UntrustedTemplate(workers, owner, source, named_tokens, self._max_chars)
            tool_template = None
        return replace(
            text_processor,
            template=template,
            tool_template=tool_template,
            system_prompt=profile.system_prompt,
            tool_call_parser=profile.tool_call_parser or text_processor.tool_call_parser,
            reasoning_parser=profile.reasoning_parser or text_processor.reasoning_parser,
        )

    def close(self) -> None:
        """Blocks until the templates that are rendered have ended."""
        self._workers.close()
        self._trials.close()

    async def _made(self, digest: str) -> TextProcessor:
        try:
            return await asyncio.to_thread(self._make, digest)
        except SQLAlchemyError:
            logger.exception("the tokenizer %s cannot be read", digest[:12])
            raise overloaded(
                "The database with this adapter's tokenizer is unavailable. Try again in a moment."
            ) from None

    def _make(self, digest: str) -> TextProcessor:
        own = self._tokenizers.get(digest)
        base = self.base.tokenizer
        tokenizer = base.extended([as_library_token(token) for token in own.added_tokens], own.named_tokens)
        end = tokenizer.eos_token_id if "eos_token" in own.named_tokens else None
        template, tool_template = self._templates(digest, own, tokenizer)
        return TextProcessor(
            tokenizer=tokenizer,
            token_text=TokenText(tokenizer, self.base.token_text),
            template=template,
            tool_template=tool_template,
            end_token_id=None if end in self._end_token_ids else end,
            added_tokens=tuple(msgspec.convert(own.added_tokens, list[AddedToken], from_attributes=True)),
            tool_call_parser=self.base.tool_call_parser,
            reasoning_parser=self.base.reasoning_parser,
        )

    def _templates(
        self, digest: str, own: AdapterTokenizer, tokenizer: Tokenizer
    ) -> tuple[Template | None, Template | None]:
        """Of all chats, and of those with tools: its own for both, or the base's."""
        if own.chat_template is None:
            return trusted_templates(tokenizer, self._max_chars)
        named_tokens = tokenizer.named_tokens
        return UntrustedTemplate(self._workers, digest, own.chat_template, named_tokens, self._max_chars), None


def _not_allowed() -> ApiError:
    message = (
        "This adapter or its serving profile brings a tokenizer or chat template, and this server does not allow "
        "these. The operator can allow them with adapter_tokenizers or LORAPLEX_ADAPTER_TOKENIZERS=true."
    )
    headers = {"x-should-retry": "false"}
    return ApiError(400, message, param="model", code="adapter_unavailable", headers=headers)
