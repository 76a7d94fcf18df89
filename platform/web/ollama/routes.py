"""All routers of Ollama's API."""

from fastapi import APIRouter

from . import chat, elsewhere, embed, generate, models

routers: tuple[APIRouter, ...] = (chat.router, generate.router, embed.router, models.router, elsewhere.router)
