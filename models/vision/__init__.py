"""Vision encoders (CLIP, SigLIP, Qwen2.5-VL) and their image preprocessing.

May import `checkpoint`, `nn`, `text`.
"""
