"""Projects, experiments, configs, runs: models, services (all writes), selectors (all reads), the run's state machine."""
