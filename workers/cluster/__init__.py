"""Ray: the only folder that imports it."""
