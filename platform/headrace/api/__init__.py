"""REST, from the same pydantic models as the engine: worker ingest, runs, configs, uploads."""
