"""Features, a folder each: what a job can measure besides collectives. Nothing outside of a folder
imports it; core/feature.py finds it by its name here."""

NAMES = ("training",)
