"""Migrations of the telemetry app."""
