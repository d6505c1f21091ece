"""Migrations of the compare app."""
