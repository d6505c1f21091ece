"""Races: the same workload, seeds and stop rule for several presets, run for real, judged with intervals over the seeds."""
