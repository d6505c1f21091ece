"""Alerts: rules over a run's events and states, and the channels that carry them out of the house."""
