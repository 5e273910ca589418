"""Functions that act as the schema's owner, so that workers and producers need not own it."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from fencepost.integrations.django.operations import ApplySteps


class Migration(migrations.Migration):
    """Step 5."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("fencepost", "0001_initial")]
    operations: ClassVar[list[ApplySteps]] = [ApplySteps(through=5, after=4)]
