"""Migrations of the artifacts app."""
