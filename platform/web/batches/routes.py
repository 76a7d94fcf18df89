"""Routers of files and batches."""

from fastapi import APIRouter

from . import files_api

routers: tuple[APIRouter, ...] = (files_api.router,)
