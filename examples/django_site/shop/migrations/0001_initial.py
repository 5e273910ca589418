"""Made by `manage.py makemigrations`."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The orders."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("email", models.EmailField(max_length=254)),
                ("cents", models.PositiveIntegerField()),
                ("receipt", models.TextField(blank=True, default="")),
                ("job", models.UUIDField(null=True)),
            ],
        ),
    ]
