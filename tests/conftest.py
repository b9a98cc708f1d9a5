"""Fixtures shared by the tests."""

import gc
import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, so that what passes here passes elsewhere; HYPOTHESIS_PROFILE=search looks for others.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave examples out of coverage: what is covered has a test of its own, and examples run faster untraced."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.add_marker(pytest.mark.no_cover)


def pytest_collection_finish() -> None:
    """Spare the collector of garbage what stays until the end: modules and tests, a million objects."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of reference data beside the project; tests that need it skip where it is absent."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not (folder / "reference").is_dir():
        pytest.skip("the reference data in ../shared are not on this machine")
    return folder


@pytest.fixture
def without_plotly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where plotly is not installed."""
    for name in ("plotly", "plotly.graph_objects", "plotly.offline"):
        monkeypatch.setitem(sys.modules, name, None)
