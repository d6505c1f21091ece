"""The model that everything is killed with."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers of random weights: what they learn is nothing, and what they do is all that is done."""
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))
