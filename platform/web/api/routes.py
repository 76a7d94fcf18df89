"""All routers of the management API."""

from fastapi import APIRouter

from .access import audit, keys, tenants, users
from .adapters import adapters, aliases, certificates, lora_routes, profiles, uploads
from .server import engine, settings, usage

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
