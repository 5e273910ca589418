"""
fencepost in a Django project.

    INSTALLED_APPS = [..., "fencepost.integrations.django"]
    FENCEPOST_APP = "shop.jobs:app"     # where the project's DjangoFencepost is
    FENCEPOST_DATABASE = "default"      # the alias in DATABASES that holds the jobs
    FENCEPOST_SCHEMA = "fencepost"      # where in it

`manage.py migrate` then makes fencepost's tables, and `manage.py fencepost worker` runs the
jobs; so does every other command of `fencepost`.
"""

from __future__ import annotations

from fencepost.integrations.django.application import DjangoFencepost
from fencepost.integrations.django.configuration import database_url

__all__ = ["DjangoFencepost", "database_url"]
