"""`manage.py fencepost …`: the command line of fencepost, with the project's app and database."""

from __future__ import annotations

import argparse
import os
import sys
import sysconfig
from typing import Any

from django.core.management.base import BaseCommand

from fencepost.cli.main import main
from fencepost.errors import FencepostError
from fencepost.integrations.django.configuration import database_url, schema

_ENTRY = "fencepost.integrations.django.entry:app"
_TAKES_AN_APP = ("serve", "worker")


class Command(BaseCommand):
    """Run a command of fencepost for this project: `worker`, `migrate --status`, `serve`, …"""

    help = "Run a command of fencepost for this project: worker, migrate --status, serve, …"

    def run_from_argv(self, argv: list[str]) -> None:
        """Hand the arguments over as they are: the options are fencepost's, not Django's."""
        try:
            self.execute_arguments(argv[2:])
        except FencepostError as error:
            self.stderr.write(f"fencepost: {error.for_operator()}")
            sys.exit(error.exit_code)

    def execute_arguments(self, arguments: list[str]) -> None:
        """Run the command; ends the process with its exit code."""
        # For this process and those that it starts, which find the project by them.
        os.environ["DATABASE_URL"] = database_url()
        os.environ["SCHEMA"] = schema()
        os.environ["PYTHONPATH"] = os.pathsep.join(_project_folders())
        if arguments[:1] and arguments[0] in _TAKES_AN_APP and not {"-h", "--help"} & {*arguments}:
            arguments = [*arguments, _ENTRY]
        main(arguments, prog_name="manage.py fencepost")

    def handle(self, *args: str, **options: Any) -> None:
        """For `call_command("fencepost", "migrate", "--status")`."""
        self.execute_arguments(options["arguments"])

    def add_arguments(self, parser: Any) -> None:
        """Take everything; only `call_command` comes this way."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)


def _project_folders() -> list[str]:
    """Where imports of the project come from, that of manage.py first; not what the interpreter has by itself."""
    own = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return [folder for folder in sys.path if folder and not folder.startswith(own) and not folder.endswith(".zip")]
