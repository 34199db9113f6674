"""MCP, the Model Context Protocol: agents make images and videos by tools, at `/mcp`.

It may import what the other doors may; `server` alone imports the SDK, which is the extra `mcp`.
"""
