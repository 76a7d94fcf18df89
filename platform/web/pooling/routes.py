"""All routers of vectors."""

from fastapi import APIRouter

from . import classify, embeddings, pool, scores

routers: tuple[APIRouter, ...] = (embeddings.router, pool.router, classify.router, scores.router)
