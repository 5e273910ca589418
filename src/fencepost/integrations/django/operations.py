"""fencepost's own migrations, as an operation of Django's."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from fencepost.errors import InvalidSettings
from fencepost.integrations.django.configuration import database_alias, schema
from fencepost.store import steps
from fencepost.store.statements import qualify


class ApplySteps(Operation):
    """
    Bring fencepost's schema up to its step *through*, in the transaction of this migration.

    Steps that a worker has applied by itself are left out, and both take the same lock. Does
    nothing in other databases than FENCEPOST_DATABASE, or where a router keeps this app out.
    """

    reduces_to_sql = True
    reversible = False

    def __init__(self, through: int, *, after: int = 0) -> None:
        """*after* is the last step of the migration before; those up to it aren't printed by `sqlmigrate`."""
        self.through = through
        self.after = after

    def state_forwards(self, app_label: str, state: Any) -> None:
        """There are no models."""

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        """Apply what is missing. Raises SchemaMismatch when what is there is not ours, InvalidSettings elsewhere."""
        connection = schema_editor.connection
        if connection.alias != database_alias() or not router.allow_migrate(connection.alias, app_label):
            return
        if connection.vendor != "postgresql":
            raise InvalidSettings(
                f"DATABASES[{connection.alias!r}] is {connection.vendor}, and jobs live in PostgreSQL; "
                "name one that is in FENCEPOST_DATABASE"
            )
        name = schema()
        # Rather give up than let every claim queue behind us, while somebody's transaction holds a table.
        for statement in [*steps.opening(name), "set local lock_timeout = '3s'"]:
            schema_editor.execute(statement, params=None)
        # What `sqlmigrate` prints is for a database without any of this migration's.
        present = set(range(self.after + 1)) if schema_editor.collect_sql else _applied(connection, name)
        for step in steps.steps():
            if step.number <= self.through and step.number not in present:
                for statement in steps.statements(step, name):
                    schema_editor.execute(statement.rstrip().rstrip(";"), params=None)

    def describe(self) -> str:
        """A line for `manage.py migrate --plan`."""
        return f"Apply fencepost's schema up to step {self.through}"

    @property
    def migration_name_fragment(self) -> str:
        """What Django would call a migration of this alone."""
        return f"step_{self.through:04}"


def _applied(connection: Any, name: str) -> set[int]:
    with connection.cursor() as cursor:
        cursor.execute(qualify(steps.APPLIED, name))
        found = [steps.Applied(*row) for row in cursor.fetchall()]
    steps.check(steps.steps(), found)
    return {step.number for step in found}
