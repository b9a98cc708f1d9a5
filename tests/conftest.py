"""Fixtures shared by the tests."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference data beside the project; tests that need it skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "reference").is_dir():
        pytest.skip("the reference data in ../shared are not on this machine")
    return folder
