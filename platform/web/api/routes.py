"""All routers of the management API."""

from fastapi import APIRouter

from . import (
    adapters,
    aliases,
    audit,
    certificates,
    engine,
    keys,
    lora_routes,
    profiles,
    settings,
    tenants,
    uploads,
    usage,
    users,
)

routers: tuple[APIRouter, ...] = (
    adapters.router,
    aliases.router,
    certificates.router,
    profiles.router,
    uploads.router,
    lora_routes.router,
    engine.router,
    settings.router,
    keys.router,
    users.router,
    tenants.router,
    usage.router,
    audit.router,
)
