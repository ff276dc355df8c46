"""Advice from fresh launches: which settings to try, those that seem faster, and a verification."""
