"""Vision towers, CLIP's and SigLIP's, and their preprocessing.

May import `checkpoint`, `nn`, `text`.
"""
