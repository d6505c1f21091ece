"""Tests that need an NVIDIA GPU. Without its driver they are not collected, so that no suite counts them as skipped."""

from pathlib import Path

collect_ignore_glob = [] if Path("/dev/nvidiactl").exists() else ["test_*.py"]
