"""AUTOMATIC1111's API as a compatible endpoint: its routes, bodies and error format."""

from __future__ import annotations

from service.routes.compat.a1111 import generate, lists, options, png_info, progress
from service.routes.compat.a1111.bodies import A1111Error, ImageToImage, TextToImage, error_form
from service.routes.compat.a1111.results import A1111Images
from service.routes.compat.a1111.router import PREFIX, router
from service.routes.compat.endpoint import CompatibleEndpoint

ROUTES = (generate, options, lists, progress, png_info)
"""Modules that add their routes to the router on import."""

ENDPOINT = CompatibleEndpoint(
    router,
    bodies=(
        TextToImage,
        ImageToImage,
        options.A1111Options,
        png_info.A1111PngInfo,
        A1111Images,
        A1111Error,
    ),
    error_forms={PREFIX: error_form},
)
