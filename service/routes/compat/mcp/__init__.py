"""MCP, the Model Context Protocol: agents generate images and videos by tools, at `/mcp`.

May import what the other compatible endpoints may. Only `server` imports the SDK, the extra `mcp`.
"""
