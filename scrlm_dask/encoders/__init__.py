"""Encoders, which compute features of texts and images; libraries are imported when needed.

An encoder stays in the process that opened it: a model is large, and may be on a GPU.
"""
