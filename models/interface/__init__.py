"""Interface between families and engine: families, pipelines, step programs, images.

May import `checkpoint`, `media`, `nn`, `parallel`, `sampling`, `spec`.
"""
