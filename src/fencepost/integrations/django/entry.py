"""
The project's app, for processes that Django didn't start.

`fencepost.integrations.django.entry:app` sets Django up, by DJANGO_SETTINGS_MODULE, before it
imports what FENCEPOST_APP names: the processes of `--processes` and those of `process=True`
can't do with less.
"""

from __future__ import annotations

import importlib

import django

from fencepost.app import Fencepost
from fencepost.errors import InvalidSettings
from fencepost.integrations.django.configuration import app_name


def _find() -> Fencepost:
    name = app_name()
    module, _, attribute = name.partition(":")
    found = getattr(importlib.import_module(module), attribute or "app", None)
    if not isinstance(found, Fencepost):
        raise InvalidSettings(f"FENCEPOST_APP is {name!r}, which isn't a Fencepost; name it as module:attribute")
    return found


django.setup()
app = _find()
