"""All routers of vectors."""

from fastapi import APIRouter

from . import classify, embeddings, scores

routers: tuple[APIRouter, ...] = (embeddings.router, classify.router, scores.router)
