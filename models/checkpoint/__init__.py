"""Checkpoint folders: where they are, their configs, their tensors unread, names of their keys.

May import `spec`.
"""
