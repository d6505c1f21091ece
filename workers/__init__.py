"""The engine: `python -m workers run` trains; nothing here knows Django."""
