"""Acceptance of machines: measured or recorded rows against limits, and the certificate of it."""
