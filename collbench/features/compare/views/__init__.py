"""Comparisons and experiments as documents."""
