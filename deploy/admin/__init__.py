"""Administration of a running system through its Redis: keys, webhook secrets, profiles.

May import `local`.
"""
