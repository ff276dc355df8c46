"""A night's health as a document."""
