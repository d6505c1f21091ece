"""`python -m headrace.dispatch`: the reconciler's process. Django is set up here, before anything imports a model."""

from __future__ import annotations

import os
import signal

import django


def main() -> None:
    """Until SIGTERM. Ctrl-C is the supervisor's business."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "headrace.settings")
    django.setup()
    from headrace.dispatch.reconciler import Reconciler

    reconciler = Reconciler()

    def stop(number: int, frame: object) -> None:
        reconciler.stopping = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    reconciler.run_forever()


if __name__ == "__main__":
    main()
