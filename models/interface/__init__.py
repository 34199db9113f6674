"""What a family fulfils and the engine asks for: pipeline, step programs, images in and out.

May import `checkpoint`, `nn`, `parallel`, `sampling`, `spec`.
"""
