"""Comparisons and races of presets."""
