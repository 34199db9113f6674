"""Interface between families and engine: pipeline, step programs, images in and out.

May import `checkpoint`, `nn`, `parallel`, `sampling`, `spec`.
"""
