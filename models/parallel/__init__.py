"""Layouts: the mesh, the table from logical axes to mesh axes, and the options of a trace.

May import `spec`.
"""
