"""All routers of the management API."""

from fastapi import APIRouter

from . import adapters, engine, keys, uploads

routers: tuple[APIRouter, ...] = (adapters.router, uploads.router, engine.router, keys.router)
