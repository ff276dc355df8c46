"""Traces and hangs as documents."""
