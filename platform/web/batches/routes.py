"""Routers of files and batches."""

from fastapi import APIRouter

from . import batches_api, files_api

routers: tuple[APIRouter, ...] = (files_api.router, batches_api.router)
