"""The API reference: Swagger UI with this server's OpenAPI document.

Its script and style come from the package `fastapi-swagger`, of which nothing else is used.
"""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter, Response
from fastapi.responses import FileResponse, HTMLResponse

from service.errors.problems import NotFound

router = APIRouter()

SWAGGER_UI = files("fastapi_swagger") / "resources"
FILES = ("swagger-ui-bundle.js", "swagger-ui.css")
CACHE = {"Cache-Control": "max-age=86400"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " img-src 'self' data: blob:; media-src 'self' blob:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Atelier API</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="reference"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
START = """SwaggerUIBundle({
  dom_id: "#reference",
  url: "openapi.json",
  validatorUrl: null,
  deepLinking: true,
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
});
"""


@router.get("/docs", include_in_schema=False)
async def reference() -> HTMLResponse:
    """Serve the page of the API reference, whose requests go to this server."""
    return HTMLResponse(PAGE, headers={"Content-Security-Policy": POLICY})


@router.get("/docs/start.js", include_in_schema=False)
async def start() -> Response:
    """Serve the script that opens Swagger UI on the OpenAPI document."""
    return Response(START, media_type="text/javascript")


@router.get("/docs/{name}", include_in_schema=False)
async def swagger_ui(name: str) -> FileResponse:
    """Serve Swagger UI's script or style. Raises: NotFound."""
    if name not in FILES:
        raise NotFound(f"the API reference has no file {name!r}; see /docs")
    return FileResponse(str(SWAGGER_UI / name), headers=CACHE)
