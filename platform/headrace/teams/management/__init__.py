"""Management commands of the teams app."""
