"""manage.py commands of telemetry."""
