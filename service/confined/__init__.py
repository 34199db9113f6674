"""Child processes that read clients' files: what they may do, and how files reach them.

Front ends and pools start such processes. It imports no other room.
"""
