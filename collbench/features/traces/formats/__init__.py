"""Traces: what jobs that others ran asked of the network, rank by rank, read from files.

Each module here reads or writes one format, found by its file's name. What a trace cannot tell is
left unknown and is listed, never guessed.
"""
