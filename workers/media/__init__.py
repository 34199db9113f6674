"""Files made of pixels: images and videos.

May import no other room; of the front end's `recipes` and `settings`.
"""
