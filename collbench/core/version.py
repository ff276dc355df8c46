"""The version of collbench."""

__version__ = "0.2.0"
