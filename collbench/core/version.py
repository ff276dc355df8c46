"""The version of collbench."""

__version__ = "0.1.0"
