"""Experiments: two variants measured in turns, launch by launch."""
