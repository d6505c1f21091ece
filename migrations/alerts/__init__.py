"""Migrations of the alerts app."""
