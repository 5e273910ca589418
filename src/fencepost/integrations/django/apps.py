"""What INSTALLED_APPS finds."""

from __future__ import annotations

from django.apps import AppConfig


class FencepostConfig(AppConfig):
    """Brings the migrations and the management command; there are no models."""

    name = "fencepost.integrations.django"
    label = "fencepost"
    verbose_name = "fencepost"
