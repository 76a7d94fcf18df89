"""All routers of the OpenAI API and its companions."""

from fastapi import APIRouter

from . import chat, completions, health, models, tokenize

routers: tuple[APIRouter, ...] = (chat.router, completions.router, models.router, tokenize.router, health.router)
