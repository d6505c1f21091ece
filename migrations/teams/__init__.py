"""Migrations of the teams app."""
