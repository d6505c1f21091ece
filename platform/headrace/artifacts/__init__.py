"""What a run left behind: checkpoints, adapters to take away, and trying them on a prompt."""
