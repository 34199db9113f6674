"""AUTOMATIC1111's API (`/sdapi/v1`): of Open WebUI's default engine, Krita, SillyTavern, webuiapi.

It may import what the other doors may. Source: AUTOMATIC1111 stable-diffusion-webui,
modules/api/api.py and models.py (the shapes).
"""
