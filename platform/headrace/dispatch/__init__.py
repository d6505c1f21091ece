"""Launching and watching jobs: Celery tasks, the launcher, the reconciler."""
