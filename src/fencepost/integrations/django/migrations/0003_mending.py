"""What was found to go wrong in enqueues of many queues, with jobs that are over, and where partitions are missing."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from fencepost.integrations.django.operations import ApplySteps


class Migration(migrations.Migration):
    """Step 6."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("fencepost", "0002_roles")]
    operations: ClassVar[list[ApplySteps]] = [ApplySteps(through=6, after=5)]
