"""Patterns: functions from a model and a layout to a step, one for each way of training in
parallel."""
