"""Loading shared by all families: readers of files or shapes, random weights, previews.

May import `checkpoint`, `weights`, `nn`, `parallel`, `spec`, `text`, `vae`.
"""
