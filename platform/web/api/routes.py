"""All routers of the management API."""

from fastapi import APIRouter

from . import adapters, certificates, engine, keys, lora_routes, tenants, uploads, users

routers: tuple[APIRouter, ...] = (
    adapters.router,
    certificates.router,
    uploads.router,
    lora_routes.router,
    engine.router,
    keys.router,
    users.router,
    tenants.router,
)
