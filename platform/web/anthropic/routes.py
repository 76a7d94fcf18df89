"""All routers of Anthropic's API."""

from fastapi import APIRouter

from . import count_tokens, messages

routers: tuple[APIRouter, ...] = (messages.router, count_tokens.router)
