"""What families share when they load: readers of files or shapes alone, random weights, previews.

May import `checkpoint`, `weights`, `nn`, `parallel`, `spec`, `text`, `vae`.
"""
