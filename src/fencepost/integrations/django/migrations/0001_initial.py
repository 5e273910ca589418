"""The schema of fencepost 0.1."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from fencepost.integrations.django.operations import ApplySteps


class Migration(migrations.Migration):
    """Everything, in one transaction."""

    initial = True
    dependencies: ClassVar[list[tuple[str, str]]] = []
    operations: ClassVar[list[ApplySteps]] = [ApplySteps(through=4)]
