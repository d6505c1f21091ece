"""What other apps may listen to."""

from django.dispatch import Signal

# Sent after the commit of a transition: sender=Run, run=<Run>, transition=<RunTransition>. Receivers must not raise.
run_changed = Signal()
