"""What runs emit: ingest, the series store, live consumers."""
