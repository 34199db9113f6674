"""Encoding of pixels into files: images, videos, sound, previews and metadata.

May import no other room; of the front end's `recipes` and `settings`.
"""
