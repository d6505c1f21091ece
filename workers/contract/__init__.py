"""The words both worlds share: config in, events out. Standard library and pydantic only."""
