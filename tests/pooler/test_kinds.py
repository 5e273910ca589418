"""Which kind of pooler it is, and what the start says when that isn't what was set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import pytest

from fencepost.errors import DatabaseUnavailable, InvalidSettings
from fencepost.settings import Secret, Settings
from fencepost.store.database import Database
from fencepost.store.doctor.examination import examine
from fencepost.store.doctor.findings import Severity
from fencepost.store.migrate import applied, migrate
from fencepost.store.pooling import Pooler, detect
from tests import pgbouncer
from tests.conftest import with_database
from tests.patience import limit

pytestmark = [pytest.mark.anyio, pytest.mark.direct]

DROPPED = (
    "search_path, timezone, statement_timeout, lock_timeout, idle_in_transaction_session_timeout, "
    "idle_session_timeout, default_transaction_isolation, jit, enable_seqscan, plan_cache_mode"
)


async def test_no_pooler(database_url: str) -> None:
    assert await detect(database_url) is Pooler.NONE
    for pooler in Pooler:
        # What is made for less than there is works too.
        database = Database(database_url, pooler=pooler)
        await database.open()
        assert [dict(row) for row in await database.fetch("audit")] == [
            {"jobs": 0, "pending": 0, "leases": 0, "finished": 0}
        ]
        await database.close()


@pytest.mark.parametrize("round_robin", ["0", "1"])
@pytest.mark.parametrize("mode", ["session", "transaction"])
async def test_a_pooler_is_known_by_its_behaviour(database_url: str, mode: str, round_robin: str) -> None:
    with pgbouncer.running(database_url, mode, server_round_robin=round_robin) as bouncer:
        for _ in range(3):
            assert await detect(bouncer.url(database_url)) == mode


async def test_a_full_pool_is_one_of_sessions(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fencepost.store.pooling.PATIENCE_SECONDS", 0.5)
    with pgbouncer.running(database_url, "session", pool_size=1) as bouncer:
        assert await detect(bouncer.url(database_url)) is Pooler.SESSION


async def test_nobody_there() -> None:
    with pytest.raises(DatabaseUnavailable):
        await detect("postgresql://nobody@127.0.0.1:1/nothing")


@pytest.mark.parametrize("mode", ["session", "transaction"])
@pytest.mark.parametrize("ignored", ["extra_float_digits", DROPPED], ids=["refusing", "dropping"])
async def test_an_unexpected_pooler_is_explained(database_url: str, mode: str, ignored: str) -> None:
    with pgbouncer.running(database_url, mode, ignore_startup_parameters=ignored) as bouncer:
        url = bouncer.url(database_url)
        database = Database(url)
        with pytest.raises(InvalidSettings, match="set DATABASE_POOLER=transaction") as raised:
            await database.open()
        assert not database.is_open
        assert "DATABASE_URL leads to a pooler" in str(raised.value)
        if ignored != DROPPED:
            assert "unsupported startup parameter: search_path" in str(raised.value)
            for door in (applied, migrate):
                with pytest.raises(InvalidSettings, match="DATABASE_POOLER"):
                    await door(Database(url))


async def test_transactions_where_sessions_were_promised(database_url: str) -> None:
    with pgbouncer.running(database_url, "transaction") as bouncer:
        database = Database(bouncer.url(database_url), pooler=Pooler.SESSION)
        with pytest.raises(InvalidSettings, match=r"DATABASE_POOLER is session.*set DATABASE_POOLER=transaction"):
            await database.open()
        assert not database.is_open


async def test_single_statements_are_not_enough(database_url: str) -> None:
    with pgbouncer.running(database_url, "statement") as bouncer:
        database = Database(bouncer.url(database_url), pooler=Pooler.TRANSACTION)
        with pytest.raises(InvalidSettings, match="pool_mode = transaction"):
            await database.open()


@pytest.mark.parametrize("pooler", [Pooler.SESSION, Pooler.TRANSACTION])
async def test_a_database_that_is_not_there(database_url: str, pooler: Pooler) -> None:
    with pgbouncer.running(database_url, pooler) as bouncer:
        missing = bouncer.url(with_database(database_url, "there_is_no_such_database"))
        with pytest.raises(InvalidSettings, match=r"DATABASE_URL: .*there_is_no_such_database"):
            await Database(missing, pooler=pooler).open()


async def test_a_proxy_that_only_answers_for_the_server(database_url: str) -> None:
    """With a process number of its own, but all that we need: it is taken for none, without being told."""
    async with proxied(database_url) as url:
        database = Database(url)
        await database.open()
        assert [dict(row) for row in await database.fetch("audit")] == [
            {"jobs": 0, "pending": 0, "leases": 0, "finished": 0}
        ]
        await database.close()
        assert "pooler.mode" not in await complaints(url)
        elsewhere = Database(database_url, pooler=Pooler.TRANSACTION, listen_dsn=url)
        (await elsewhere.connect_to_listen()).terminate()


@pytest.mark.parametrize(("pooler", "expected"), [(Pooler.NONE, 1), (Pooler.SESSION, 1), (Pooler.TRANSACTION, 4)])
async def test_round_trips_of_a_statement(database_url: str, pooler: Pooler, expected: int) -> None:
    turns: list[str] = []
    async with proxied(database_url, turns) as url:
        database = Database(url, pooler=pooler)
        await database.open()
        for _ in range(3):
            turns.clear()
            await database.fetch("audit")
        assert turns.count("asked") == expected, "the third time"
        await database.close()
    page = (Path(__file__).parents[2] / "docs/how-to/poolers.md").read_text(encoding="utf-8")
    [told] = [line.split("|")[2:5] for line in page.splitlines() if "round trips of a statement" in line]
    assert int(told[list(Pooler).index(pooler)]) == expected


async def test_the_doctor_knows_what_a_start_would_refuse(database_url: str) -> None:
    for ignored in ("extra_float_digits", DROPPED):
        with pgbouncer.running(database_url, "session", ignore_startup_parameters=ignored) as bouncer:
            assert "pooler.mode" in await complaints(bouncer.url(database_url))


async def complaints(url: str) -> list[str]:
    """What the doctor says, without being told of a pooler."""
    return [one.code for one in (await examine(url, Settings())).findings if one.severity is not Severity.OK]


@asynccontextmanager
async def proxied(url: str, turns: list[str] | None = None) -> AsyncIterator[str]:
    """
    The address of *url* through something that gives out other process numbers than the server's.

    Who speaks is added to *turns*, each time that it is another.
    """
    there = urlsplit(url)
    query = dict(parse_qsl(there.query))
    host, port = query.get("host") or there.hostname or "127.0.0.1", query.get("port") or str(there.port or 5432)

    relays: list[Any] = []
    said: list[str] = [] if turns is None else turns

    async def relay(client: asyncio.StreamReader, answers: asyncio.StreamWriter) -> None:
        opening = (
            asyncio.open_unix_connection(f"{host}/.s.PGSQL.{port}")
            if host.startswith("/")
            else asyncio.open_connection(host, int(port))
        )
        relays.append(asyncio.current_task())
        server, requests = await opening
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await asyncio.gather(pass_on(client, requests, said), renumbered(server, answers, said))
        for writer in (requests, answers):
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    proxy = await asyncio.start_server(relay, "127.0.0.1")
    own = proxy.sockets[0].getsockname()[1]
    rest = [(name, value) for name, value in query.items() if name not in ("host", "port")]
    account = f"{there.username}@" if there.username else ""
    yield urlunsplit(
        there._replace(netloc=f"{account}127.0.0.1:{own}", query=urlencode([*rest, ("sslmode", "disable")]))
    )
    proxy.close()
    await asyncio.gather(*relays)


async def pass_on(source: asyncio.StreamReader, sink: asyncio.StreamWriter, turns: list[str]) -> None:
    """Everything that is asked, until there is no more."""
    while data := await source.read(65536):
        if turns[-1:] != ["asked"]:
            turns.append("asked")
        sink.write(data)
        await sink.drain()
    sink.close()


async def renumbered(server: asyncio.StreamReader, answers: asyncio.StreamWriter, turns: list[str]) -> None:
    """What the server says, with another process number in its greeting, until it says no more."""
    while True:
        kind, length = await server.readexactly(1), await server.readexactly(4)
        body = await server.readexactly(int.from_bytes(length) - 4)
        if kind == b"K":
            body = (int.from_bytes(body[:4]) + 1).to_bytes(4) + body[4:]
        if turns[-1:] != ["answered"]:
            turns.append("answered")
        answers.write(kind + length + body)


async def test_a_way_to_listen_through_a_pooler_that_keeps_sessions(database_url: str) -> None:
    """It hears, and the pooler needs no `ignore_startup_parameters` for that either."""
    heard = asyncio.Event()
    with pgbouncer.running(database_url, "session") as bouncer:
        database = Database(bouncer.url(database_url), pooler=Pooler.TRANSACTION, listen_dsn=bouncer.url(database_url))
        await database.open()
        ear = await database.connect_to_listen()
        await ear.add_listener("here", lambda *_: heard.set())
        await database.execute("notify here")
        async with asyncio.timeout(limit(10)):
            await heard.wait()
        ear.terminate()
        await database.close()


async def test_a_way_to_listen_that_leads_to_a_pooler(database_url: str) -> None:
    with pgbouncer.running(database_url, "transaction", ignore_startup_parameters=DROPPED) as bouncer:
        url = bouncer.url(database_url)
        database = Database(url, pooler=Pooler.TRANSACTION, listen_dsn=url)
        with pytest.raises(InvalidSettings, match="DATABASE_LISTEN_URL"):
            await database.connect_to_listen()


async def test_a_way_to_listen_that_leads_elsewhere(database_url: str, empty_url: str) -> None:
    """Another database would be listened to without a word, and nothing heard."""
    for pooler in (Pooler.TRANSACTION, Pooler.NONE):
        database = Database(database_url, pooler=pooler, listen_dsn=empty_url)
        await database.open()
        with pytest.raises(InvalidSettings, match=r"^DATABASE_LISTEN_URL leads to another database \(.+\) than"):
            await database.connect_to_listen()
        await database.close()


async def test_the_doctor_looks_at_the_way_to_listen(database_url: str, empty_url: str) -> None:
    await migrate(Database(database_url))
    for url in (empty_url, "postgresql://127.0.0.1:1/x"):
        found = await examine(database_url, Settings(listen_url=Secret(url)), quick=True)
        [told] = [one for one in found.findings if one.code == "pooler.listen_url"]
        assert told.severity is Severity.WARNING
        assert told.what.startswith("DATABASE_LISTEN_URL")
    found = await examine(database_url, Settings(listen_url=Secret(database_url)), quick=True)
    assert "pooler.listen_url" not in [one.code for one in found.findings]


async def test_a_way_to_listen_that_leads_nowhere(database_url: str) -> None:
    database = Database(database_url, listen_dsn="postgresql://127.0.0.1:1/x")
    await database.open()
    with pytest.raises(DatabaseUnavailable, match=r"^DATABASE_LISTEN_URL: "):
        await database.connect_to_listen()
    await database.close()
