"""AUTOMATIC1111's API (`/sdapi/v1`), for Open WebUI, Krita, SillyTavern and webuiapi.

May import what the other compatible endpoints may. Source: AUTOMATIC1111 stable-diffusion-webui,
modules/api/api.py and models.py (the shapes).
"""
