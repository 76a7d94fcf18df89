"""All routers of vectors."""

from fastapi import APIRouter

from . import embeddings

routers: tuple[APIRouter, ...] = (embeddings.router,)
