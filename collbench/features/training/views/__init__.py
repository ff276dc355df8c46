"""Steps as documents."""
