"""fencepost.integrations.django: migrations, settings, and the ORM in handlers of every kind."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from fencepost.store import migrate, steps
from fencepost.store.database import Database
from tests.migrations.dump import schema_text

from .support import run
from .test_django import SITE, fetch, manage

SCHEMA = "Jobs of the shop"
SETTINGS = f"""
from site_settings import *

FENCEPOST_APP = "extra_jobs:app"
FENCEPOST_SCHEMA = {SCHEMA!r}
"""
JOBS = """
import os, threading

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from fencepost.integrations.django import DjangoFencepost
from shop.models import Order

app = DjangoFencepost()


ALL = threading.Barrier(8)


def meet() -> int:
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        [backend] = cursor.fetchone()
        # Nobody gets past this alone, however slow the machine is.
        ALL.wait(30)
        return backend


@app.job(max_attempts=1)
async def meet_async() -> int:
    await Order.objects.acount()
    return await sync_to_async(meet)()


@app.job(max_attempts=1)
def meet_plain() -> int:
    return meet()


@app.job(process=True)
def count_elsewhere() -> list[int]:
    return [os.getpid(), Order.objects.count()]


@app.job
def forget_to_commit() -> None:
    transaction.set_autocommit(False)
    Order.objects.create(email="nobody@example.org", cents=1)
"""
PROGRAM = """
import asyncio, os, time
import django

django.setup()
from django.db import connections
from extra_jobs import *


def others():
    # A backend is listed a moment longer than its client holds it: what matters is what stays.
    until = time.monotonic() + 10
    while True:
        with connections["default"].cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            )
            [count] = cursor.fetchone()
        if count == 0 or time.monotonic() > until:
            return count
        time.sleep(0.02)


async def main():
    async with app, app.worker(workers=8):
        {body}


asyncio.run(main())
print("left open:", others())
print("orders:", Order.objects.count())
connections.close_all()
"""


@pytest.fixture
def site(tmp_path: Path, empty_url: str) -> dict[str, Any]:
    """What to run manage.py with: other jobs, and a schema of another name."""
    (tmp_path / "extra_jobs.py").write_text(JOBS)
    (tmp_path / "extra_settings.py").write_text(SETTINGS)
    more = {"DATABASE_URL": empty_url, "DJANGO_SETTINGS_MODULE": "extra_settings", "PYTHONPATH": str(tmp_path)}
    manage("migrate", **more)
    return more


def said(body: str, site: dict[str, Any]) -> list[str]:
    """What a program says that runs *body* beside a worker."""
    return run("-c", PROGRAM.replace("{body}", body), folder=SITE, **site).stdout.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["meet_async", "meet_plain"])
def test_handlers_use_the_orm_side_by_side_and_leave_nothing_open(site: dict[str, Any], kind: str) -> None:
    body = f"""
        handles = await {kind}.enqueue_many([{kind}.call() for _ in range(8)])
        backends = [await handle.result(timeout=40) for handle in handles]
        print(len(set(backends)))
    """
    assert said(body, site) == ["8", "left open: 0", "orders: 0"]


@pytest.mark.slow
def test_a_process_of_its_own_has_django_set_up(site: dict[str, Any]) -> None:
    body = """
        process, orders = await (await count_elsewhere.enqueue()).result(timeout=30)
        print(process != os.getpid(), orders)
    """
    assert said(body, site) == ["True 0", "left open: 0", "orders: 0"]


@pytest.mark.slow
def test_what_a_handler_forgot_to_commit_is_rolled_back(site: dict[str, Any]) -> None:
    body = """
        await (await forget_to_commit.enqueue()).result(timeout=20)
    """
    assert said(body, site) == ["left open: 0", "orders: 0"]


@pytest.mark.slow
@pytest.mark.parametrize("printed", [False, True], ids=["migrate", "sqlmigrate"])
async def test_migrations_make_the_schema_that_fencepost_makes(
    empty_url: str, database_url: str, printed: bool
) -> None:
    ours, djangos = await asyncpg.connect(database_url), await asyncpg.connect(empty_url)
    try:
        if printed:
            for number in ("0001", "0002", "0003", "0004"):
                await djangos.execute(manage("sqlmigrate", "fencepost", number, DATABASE_URL=empty_url))
        else:
            manage("migrate", "fencepost", DATABASE_URL=empty_url)
        assert await schema_text(djangos, "fencepost") == await schema_text(ours, "fencepost")
    finally:
        await ours.close()
        await djangos.close()
    assert await migrate.migrate(Database(empty_url)) == [], "and it is recorded as applied"


@pytest.mark.slow
async def test_migrations_leave_out_what_a_worker_has_applied_already(database_url: str) -> None:
    """The fixture's schema was made by fencepost itself."""
    before = await fetch(database_url, "select number, applied_at from fencepost.schema_version order by 1")
    assert "Applying fencepost.0001_initial... OK" in manage("migrate", DATABASE_URL=database_url)
    assert await fetch(database_url, "select number, applied_at from fencepost.schema_version order by 1") == before
    assert "No migrations to apply" in manage("migrate", DATABASE_URL=database_url)
    status = manage("fencepost", "migrate", "--status", DATABASE_URL=database_url)
    assert "missing" not in status


@pytest.mark.slow
async def test_the_jobs_may_be_in_another_database_than_the_default(
    site: dict[str, Any], tmp_path: Path, database_url: str
) -> None:
    """Its migrations go there alone, and its commands too."""
    (tmp_path / "extra_settings.py").write_text(
        SETTINGS + f"FENCEPOST_DATABASE = 'jobs'\nFENCEPOST_SCHEMA = 'elsewhere'\n"
        f"DATABASES['jobs'] = database({database_url!r})\n"
    )
    missing = "select to_regclass('elsewhere.jobs') is null"
    manage("migrate", **site)
    assert await fetch(site["DATABASE_URL"], missing) == [(True,)]
    manage("migrate", "fencepost", "--database", "jobs", **site)
    assert await fetch(site["DATABASE_URL"], missing) == [(True,)]
    assert await fetch(database_url, missing) == [(False,)]
    assert "missing" not in manage("fencepost", "migrate", "--status", **site)


@pytest.mark.slow
def test_it_is_the_same_with_atomic_requests_and_kept_connections(site: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "extra_settings.py").write_text(
        "from site_settings import *\nDATABASES['default'] |= {'ATOMIC_REQUESTS': True, 'CONN_MAX_AGE': 60}\n"
    )
    assert re.search(r"Ran 5 tests.*OK", manage("test", "--noinput", **site), re.S)


@pytest.mark.slow
def test_jobs_in_another_kind_of_database_are_refused(site: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "extra_settings.py").write_text(
        SETTINGS + "DATABASES['default'] = {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}\n"
    )
    assert "jobs live in PostgreSQL" in run("manage.py", "migrate", folder=SITE, code=1, **site).stderr
    refused = run("manage.py", "fencepost", "worker", folder=SITE, code=2, **site).stderr
    assert refused.startswith("fencepost: DATABASES['default'] is sqlite, and jobs live in PostgreSQL")


async def test_a_schema_of_another_version_is_refused(database_url: str) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        await connection.execute("update fencepost.schema_version set checksum = 'other' where number = 1")
    finally:
        await connection.close()
    ended = run("manage.py", "migrate", "fencepost", folder=SITE, code=1, DATABASE_URL=database_url)
    assert "isn't the one this version ships" in ended.stderr


def test_the_newest_migration_goes_through_the_newest_step() -> None:
    """A step that is added needs a migration of Django's, or its projects would only get it from a worker."""
    folder = Path(steps.__file__).parents[1] / "integrations/django/migrations"
    files = sorted(folder.glob("0*.py"))
    through = [int(found) for file in files for found in re.findall(r"ApplySteps\(through=(\d+)", file.read_text())]
    assert through == sorted(set(through))
    assert through[-1] == steps.steps()[-1].number


@pytest.mark.slow
def test_django_sees_no_models_to_migrate(site: dict[str, Any]) -> None:
    assert "No changes detected" in manage("makemigrations", "--check", "--dry-run", **site)
    printed = manage("sqlmigrate", "fencepost", "0001", **site)
    assert f'create table "{SCHEMA}".jobs' in printed
    # As one script it can be run by whoever may, in place of `migrate`.
    assert printed.strip().endswith("COMMIT;")


@pytest.mark.slow
def test_the_command_line_is_all_there(site: dict[str, Any]) -> None:
    assert "Usage: manage.py fencepost worker" in manage("fencepost", "worker", "--help", **site)
    status = manage("fencepost", "migrate", "--status", **site)
    assert len(re.findall(r"^\d{4} \w+ +applied ", status, re.M)) == len(steps.steps())


@pytest.mark.slow
def test_a_project_without_an_app_is_told_so(site: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "extra_settings.py").write_text('from site_settings import *\nFENCEPOST_APP = ""\n')
    ended = run("manage.py", "fencepost", "worker", folder=SITE, code=2, **site)
    assert "FENCEPOST_APP" in ended.stderr


@pytest.mark.parametrize(
    ("database", "address"),
    [
        ({"NAME": "shop"}, "postgresql:///shop"),
        ({"NAME": "shop", "HOST": "db", "PORT": 5433, "USER": "me"}, "postgresql://me@db:5433/shop"),
        ({"NAME": "a/b", "USER": "o'b@c", "PASSWORD": "p:/w"}, "postgresql://o%27b%40c:p%3A%2Fw@/a%2Fb"),
        ({"NAME": "shop", "PORT": "5433"}, "postgresql://localhost:5433/shop"),
        ({"NAME": "shop", "HOST": "/run/pg", "PORT": "5433"}, "postgresql:///shop?host=%2Frun%2Fpg&port=5433"),
        (
            {"NAME": "shop", "HOST": "::1", "OPTIONS": {"sslmode": "require", "pool": True}},
            "postgresql://[::1]/shop?sslmode=require",
        ),
    ],
)
def test_the_address_is_that_of_djangos_database(database: dict[str, object], address: str) -> None:
    configuration = import_module("fencepost.integrations.django.configuration")
    assert configuration._address(database) == address
