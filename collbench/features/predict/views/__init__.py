"""Predictions, fits and efficiency as documents."""
