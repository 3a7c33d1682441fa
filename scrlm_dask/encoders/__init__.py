"""What makes features of texts and images, one library a file, each imported when it is asked for.

An encoder stays in the process that opened it: a model is large, and may sit on a GPU.
"""
