"""Enqueues that wake the workers of all their queues, and that no expired job stands in the way of."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from fencepost.integrations.django.operations import ApplySteps


class Migration(migrations.Migration):
    """Step 6."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("fencepost", "0002_roles")]
    operations: ClassVar[list[ApplySteps]] = [ApplySteps(through=6, after=5)]
