"""Migrations of the api app."""
