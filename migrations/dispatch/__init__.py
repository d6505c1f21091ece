"""Migrations of the dispatch app."""
