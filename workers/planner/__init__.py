"""Runs of the real flow on a clock, with engines and trainers that only take declared time."""
