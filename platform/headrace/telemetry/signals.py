"""What other apps may listen to."""

from django.dispatch import Signal

# Sent after the commit of new events of a live attempt: sender=Attempt, attempt=<Attempt>, points={series name: Rows}, last_t=<Unix s>.
batch_stored = Signal()
