"""The Celery application: `celery -A headrace.celery:app worker`. Celery is a wake-up only; the database is the truth."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headrace.settings")

app = Celery("headrace")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["headrace.dispatch", "headrace.experiments", "headrace.artifacts", "headrace.alerts"])
