"""Files made of pixels: images and videos.

May import no other room.
"""
