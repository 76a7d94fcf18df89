"""All routers of the OpenAI API and its companions."""

from fastapi import APIRouter

from . import chat, completions, health, models, tokenize
from .responses import call as responses
from .responses import input_tokens, stored

routers: tuple[APIRouter, ...] = (
    chat.router,
    completions.router,
    responses.router,
    input_tokens.router,
    stored.router,
    models.router,
    tokenize.router,
    health.router,
)
