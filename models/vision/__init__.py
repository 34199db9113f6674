"""CLIP's vision tower and its preprocessing.

May import `checkpoint`, `nn`, `text`.
"""
