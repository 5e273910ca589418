"""A survey counts for the times it was made for; a request is not answered with what became of another."""

from __future__ import annotations

from typing import ClassVar

from django.db import migrations

from fencepost.integrations.django.operations import ApplySteps


class Migration(migrations.Migration):
    """Step 7."""

    dependencies: ClassVar[list[tuple[str, str]]] = [("fencepost", "0003_mending")]
    operations: ClassVar[list[ApplySteps]] = [ApplySteps(through=7, after=6)]
