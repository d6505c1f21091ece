"""Migrations of the experiments app."""
