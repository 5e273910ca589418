"""Kits on this repository's own test databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fencepost import Fencepost
from fencepost.store import sessions
from fencepost.testing import Kit

MakeKit = Callable[..., Kit]


@pytest.fixture
def app() -> Fencepost:
    """An app whose own database isn't there: whatever a kit forgets to turn aside fails."""
    return Fencepost("postgresql://nobody@127.0.0.1:1/nowhere")


@pytest.fixture
def make_kit(database_url: str) -> Iterator[MakeKit]:
    """Makes kits on the test's database. What kits change for the whole process is put back."""
    before = dict(sessions.SESSION)

    def make(app: Fencepost, **options: Any) -> Kit:
        return Kit(app, database_url, **options)

    yield make
    sessions.SESSION.clear()
    sessions.SESSION.update(before)
