"""Hand jobs in through every door, at a steady rate, again and again under the same key until an answer is there."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import httpx2

from chaos import jobs, scripts
from chaos.ledger import Ack, CancelAck, Intent, RolledBack, SubmissionLedger
from chaos.scripts import Casting
from fencepost import Unique

DOORS = {"http": 46, "bulk": 3, "library": 20, "sql": 16, "rollback": 5}
"""How often each is used. A bulk request carries `BULK` jobs."""
BULK = (10, 60)
ANSWER_SECONDS = 5.0
PAUSE_SECONDS = 0.1
LONGEST_BACKLOG = 500
"""Jobs that may wait. More would only make whatever is found at the end take longer to come to light."""
AT_ONCE = 96
"""Requests under way. In an outage they pile up to this, and no further."""

WORTH_ANOTHER_TRY = (
    httpx2.HTTPError,
    OSError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    # A connection that was ended before its first statement.
    asyncpg.exceptions.InternalClientError,
)
_LIBRARY: dict[str, Any] = {"play": jobs.play, "play_plain": jobs.play_plain, "play_in_child": jobs.play_in_child}


class RefusedForGood(Exception):
    """An answer that no fault explains."""


class Submitters:
    """
    Hands in jobs until told to stop; then every request that is under way goes on until it is answered.

    *addresses* are those of the APIs, *database* a way to an address of the database.
    """

    def __init__(
        self, ledger: SubmissionLedger, draw: random.Random, *, apis: Sequence[str], databases: Sequence[str]
    ) -> None:
        self._ledger = ledger
        self._draw = draw
        self._apis = apis
        self._databases = databases
        self._http = httpx2.AsyncClient(timeout=ANSWER_SECONDS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._number = 0
        self._stopping = False
        self.acknowledged: Counter[str] = Counter()
        """Jobs by script."""
        self.doors: Counter[str] = Counter()
        self.repeats = 0
        """Requests that were sent again."""
        self.refusals: list[str] = []
        """Answers that no fault explains."""

    @property
    def total(self) -> int:
        """How many jobs were acknowledged."""
        return self.acknowledged.total()

    @property
    def under_way(self) -> int:
        """Requests without an answer yet."""
        return len(self._tasks)

    async def run(self, seconds: float, rate: float, backlog: Callable[[], int]) -> None:
        """Hand in *rate* jobs a second for so long, as far as answers come, and *backlog* isn't too long."""
        until = time.monotonic() + seconds
        due = time.monotonic()
        while (now := time.monotonic()) < until:
            if now < due or len(self._tasks) >= AT_ONCE or backlog() >= LONGEST_BACKLOG:
                await asyncio.sleep(0.005)
                continue
            # After a time without answers it goes on at the rate, rather than make up for all that was missed.
            due = max(due, now - 1.0) + self._begin() / rate

    def hand_in(self, script: str, count: int) -> None:
        """Hand in *count* jobs with this script over HTTP, beside all others."""
        for _ in range(count):
            self._number += 1
            self._launch("http", [scripts.cast(self._draw, f"http-{self._number}", name=script)])

    async def finish(self) -> None:
        """Wait until everything that was begun is answered. The caller gives up after a while."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Stop, whatever is under way."""
        self._stopping = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    def _begin(self) -> int:
        door = self._draw.choices(list(DOORS), list(DOORS.values()))[0]
        count = self._draw.randint(*BULK) if door == "bulk" else 1
        castings = [self._cast(door) for _ in range(count)]
        self._launch(door, castings)
        return count

    def _cast(self, door: str) -> Casting:
        self._number += 1
        casting = scripts.cast(self._draw, f"{door}-{self._number}")
        if casting.script.cancels and door == "rollback":
            return scripts.cast(self._draw, f"{door}-{self._number}", name="quick")
        return casting

    def _launch(self, door: str, castings: list[Casting]) -> asyncio.Task[None]:
        task = asyncio.create_task(self._hand_in(door, castings))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _hand_in(self, door: str, castings: list[Casting]) -> None:
        ways: dict[str, Callable[[list[Casting]], Awaitable[list[tuple[str, str]]]]] = {
            "http": self._over_http,
            "bulk": self._in_bulk,
            "library": self._with_the_library,
            "sql": self._from_sql,
            "rollback": self._and_roll_back,
        }
        self._ledger.note(
            *(
                Intent(casting.key, casting.script.name, door, time.time(), casting.delay, casting.unique)
                for casting in castings
            )
        )
        answers = await self._until_answered(lambda: ways[door](castings), castings)
        if not answers:
            return
        now = time.time()
        await self._ledger.keep(
            *(Ack(casting.key, job, effect, now) for casting, (job, effect) in zip(castings, answers, strict=True))
        )
        self.doors[door] += len(castings)
        for casting, (job, _) in zip(castings, answers, strict=True):
            self.acknowledged[casting.script.name] += 1
            if casting.script.cancels:
                await asyncio.sleep(self._draw.uniform(0, 1.5))
                await self._until_answered(partial(self._cancel, job), [casting])

    async def _until_answered(
        self, ask: Callable[[], Awaitable[list[tuple[str, str]]]], castings: list[Casting]
    ) -> list[tuple[str, str]]:
        while True:
            try:
                async with asyncio.timeout(ANSWER_SECONDS * 2):
                    return await ask()
            except WORTH_ANOTHER_TRY:
                self.repeats += 1
                await asyncio.sleep(PAUSE_SECONDS * self._draw.uniform(0.5, 3))
            except RefusedForGood as error:
                self.refusals.append(f"{castings[0].key}: {error}")
                return []

    async def _over_http(self, castings: list[Casting]) -> list[tuple[str, str]]:
        (casting,) = castings
        answer = await self._http.post(
            f"{self._api()}/jobs", json=casting.as_json(), headers={"Idempotency-Key": casting.key}
        )
        job = _read(answer)
        effect = answer.headers.get("Unique-Effect") or ("created" if answer.status_code == 201 else "replayed")
        return [(job["id"], effect)]

    async def _in_bulk(self, castings: list[Casting]) -> list[tuple[str, str]]:
        body = [{**casting.as_json(), "idempotency_key": casting.key} for casting in castings]
        answer = _read(await self._http.post(f"{self._api()}/jobs", json=body))
        return [(job["id"], job["effect"]) for job in answer["jobs"]]

    async def _cancel(self, job: str) -> list[tuple[str, str]]:
        answer = await self._http.post(f"{self._api()}/jobs/{job}/cancel")
        if answer.status_code == 409:
            # It has ended.
            return []
        status = str(_read(answer)["status"])
        await self._ledger.keep(CancelAck(job, status, time.time()))
        return [(job, status)]

    async def _with_the_library(self, castings: list[Casting]) -> list[tuple[str, str]]:
        """In a transaction of our own that writes something beside it: both are there, or none is."""
        (casting,) = castings
        connection = await self._connect()
        try:
            async with connection.transaction():
                answer = await _enqueue(connection, casting)
                await connection.execute(
                    "insert into chaos.orders (key) values ($1) on conflict do nothing", casting.key
                )
            return [answer]
        finally:
            connection.terminate()

    async def _from_sql(self, castings: list[Casting]) -> list[tuple[str, str]]:
        (casting,) = castings
        connection = await self._connect()
        try:
            job: UUID = await connection.fetchval(
                "select fencepost.enqueue($1, $2::jsonb, priority => $3, max_attempts => $4, delay => $5::interval,"
                " timeout => $6::interval, idempotency_key => $7, unique_key => $8)",
                casting.script.type,
                json.dumps(casting.payload),
                casting.priority,
                casting.script.max_attempts,
                _interval(casting.delay or None),
                _interval(casting.script.timeout),
                casting.key,
                casting.unique,
            )
            return [(str(job), "unknown")]
        finally:
            connection.terminate()

    async def _and_roll_back(self, castings: list[Casting]) -> list[tuple[str, str]]:
        (casting,) = castings
        connection = await self._connect()
        try:
            transaction = connection.transaction()
            await transaction.start()
            await _enqueue(connection, casting)
            await connection.execute("insert into chaos.orders (key) values ($1)", casting.key)
            await transaction.rollback()
        finally:
            connection.terminate()
        await self._ledger.keep(RolledBack(casting.key))
        self.doors["rollback"] += 1
        return []

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        return await asyncpg.connect(
            self._draw.choice(self._databases),
            timeout=ANSWER_SECONDS,
            command_timeout=ANSWER_SECONDS,
            statement_cache_size=0,
        )

    def _api(self) -> str:
        return self._draw.choice(self._apis)


async def _enqueue(connection: asyncpg.Connection[asyncpg.Record], casting: Casting) -> tuple[str, str]:
    script = casting.script
    job = _LIBRARY[script.type].options(
        max_attempts=script.max_attempts,
        priority=casting.priority,
        delay=casting.delay or None,
        timeout=script.timeout,
        idempotency_key=casting.key,
        unique=None if casting.unique is None else Unique(key=casting.unique),
    )
    handle = await job.within(connection).enqueue(script.name, casting.key, casting.times)
    return str(handle.id), str(handle.effect)


def _interval(seconds: float | None) -> timedelta | None:
    return None if seconds is None else timedelta(seconds=seconds)


def _read(answer: httpx2.Response) -> Any:
    """The body of a good answer. Raises OSError for what is worth another try, RefusedForGood for the rest."""
    if answer.status_code >= 500:
        raise OSError(f"{answer.status_code} {answer.text[:200]}")
    if answer.status_code >= 400:
        raise RefusedForGood(f"{answer.status_code} {answer.text[:300]}")
    return answer.json()
