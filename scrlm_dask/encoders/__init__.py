"""Encoders that compute features of texts and images; libraries are imported only when needed.

An encoder is not sent to workers, because its model may be large or on a GPU.
"""
