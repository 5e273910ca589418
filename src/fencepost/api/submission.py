"""Taking jobs in: `POST /jobs`, one or many, and `POST /submit`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import msgspec

from fencepost.api.decoding import THE_BODY, BodyDecoder, split_array, split_lines
from fencepost.api.http import HttpError, Request, Response, answer, location
from fencepost.api.media import Media, media_of
from fencepost.api.schemas import (
    BulkAnswer,
    BulkItem,
    SubmitRequest,
    Submitted,
    record_of,
    record_of_new,
)
from fencepost.domain.fields import check_key, parse_trace_context
from fencepost.domain.job import NewJob
from fencepost.domain.requests import JobRequest, Rules, make_job
from fencepost.errors import DuplicateJob, InvalidJob, JobNotFound
from fencepost.logger import get_logger
from fencepost.store.enqueueing import CREATED, Enqueued
from fencepost.store.jobs import Jobs
from fencepost.telemetry.events import Events

BULK_JOBS = 10_000
BULK_BYTES = 32 << 20
ENVELOPE_BYTES = 16 << 10
"""What a request for one job may take beside its payload."""
BREATH_SECONDS = 0.005
"""How long a bulk request is worked on before others get their turn."""

_REPLAYED = (b"idempotent-replayed", b"true")
_logger = get_logger("fencepost.jobs")


class _Task(msgspec.Struct, frozen=True):
    task: str


class Submissions:
    """The routes that make jobs."""

    def __init__(self, jobs: Jobs, rules: Rules, events: Events) -> None:
        self._jobs = jobs
        self._rules = rules
        self._events = events
        self._job = BodyDecoder(JobRequest)
        self._submit = BodyDecoder(SubmitRequest)
        self._task = msgspec.json.Decoder(_Task)

    async def post_jobs(self, request: Request) -> Response:
        """Make one job of an object, or all jobs of an array or of lines, or none."""
        media = media_of(request, lines=True)
        limit = self._rules.payload_bytes + ENVELOPE_BYTES
        if media is Media.LINES:
            return await self._bulk(request, split_lines(await request.body(BULK_BYTES)))
        body = await request.body(limit, bulk_limit=max(BULK_BYTES, limit))
        if body[:1] == b"[" or body.lstrip()[:1] == b"[":
            return await self._bulk(request, split_array(body))
        job = make_job(self._job.decode(body), self._rules, request_id=request.id)
        job, enqueued = await self._store_one(job, request)
        if enqueued.is_new:
            return answer(record_of_new(job, enqueued), 201, _headers(enqueued))
        try:
            current = await self._jobs.get(enqueued.id)
            record = record_of(current, await self._jobs.attempts(enqueued.id))
        except JobNotFound:
            raise DuplicateJob(
                f"job {enqueued.id} has this job's key still, though it has ended and was removed since; nothing was "
                "stored. Keep ended jobs for as long as their keys (RETAIN_COMPLETED and its kin), or use another key"
            ) from None
        return answer(record, 200, _headers(enqueued))

    async def post_submit(self, request: Request) -> Response:
        """Make one job whose type is its payload's `task`."""
        media_of(request)
        body = await request.body(self._rules.payload_bytes + ENVELOPE_BYTES)
        wanted = self._submit.decode(body)
        try:
            name = self._task.decode(wanted.payload).task
        except (msgspec.DecodeError, RecursionError):
            message = "must be an object whose member `task`, a string, is the type of the job"
            raise InvalidJob(message, field="payload") from None
        as_job = JobRequest(
            type=name, payload=wanted.payload, priority=wanted.priority, max_attempts=wanted.max_retries + 1
        )
        job = make_job(as_job, self._rules, request_id=request.id)
        _, enqueued = await self._store_one(job, request)
        return answer(Submitted(enqueued.id), 201 if enqueued.is_new else 200, _headers(enqueued))

    async def _store_one(self, job: NewJob, request: Request) -> tuple[NewJob, Enqueued]:
        key = key_of(request)
        if key is not None:
            if job.idempotency_key not in (None, key):
                raise InvalidJob("differs from the Idempotency-Key header; send one of them", field="idempotency_key")
            job = msgspec.structs.replace(job, idempotency_key=key)
        trace = trace_of(request)
        if trace is not None:
            job = msgspec.structs.replace(job, trace_context=trace)
        enqueued = (await self._jobs.enqueue([job]))[0]
        if enqueued.is_new:
            self._events.submitted(1)
            _logger.info(
                "job submitted",
                extra={
                    "job_id": str(job.id),
                    "request_id": request.id,
                    "job_type": job.type,
                    "queue": job.queue,
                },
            )
        return job, enqueued

    async def _bulk(self, request: Request, items: Iterator[bytes]) -> Response:
        if b"idempotency-key" in request.headers:
            raise InvalidJob(
                "one Idempotency-Key header can't stand for many jobs; give each job its own idempotency_key instead"
            )
        jobs = await self._read_bulk(items, request.id)
        trace = trace_of(request)
        if trace is not None:
            jobs = [msgspec.structs.replace(job, trace_context=trace) for job in jobs]
        enqueued = await self._jobs.enqueue(jobs)
        stored = sum(entry.is_new for entry in enqueued)
        if stored:
            self._events.submitted(stored)
            _logger.info(
                "jobs submitted",
                extra={"count": stored, "first_job_id": str(enqueued[0].id), "request_id": request.id},
            )
        made = BulkAnswer(len(enqueued), [BulkItem(entry.id, entry.replayed, entry.effect) for entry in enqueued])
        return answer(made, 201 if stored else 200)

    async def _read_bulk(self, items: Iterator[bytes], request_id: str) -> list[NewJob]:
        jobs: list[NewJob] = []
        breathe_at = time.perf_counter() + BREATH_SECONDS
        for index, raw in enumerate(items):
            if index >= BULK_JOBS:
                raise HttpError(
                    413, "too_large", f"a bulk request may hold {BULK_JOBS:,} jobs; split this one into several"
                )
            try:
                jobs.append(make_job(self._job.decode(raw, "this item"), self._rules, request_id=request_id))
            except InvalidJob as error:
                raise error.at(index) from None
            if time.perf_counter() > breathe_at:
                await asyncio.sleep(0)
                breathe_at = time.perf_counter() + BREATH_SECONDS
        if not jobs:
            raise InvalidJob(f"{THE_BODY} holds no job; a bulk request needs at least one")
        return jobs


def trace_of(request: Request) -> str | None:
    """The traceparent header, read; None without one, and for one that isn't what it should be."""
    header = request.header(b"traceparent")
    return None if header is None else parse_trace_context(header)


def _headers(enqueued: Enqueued) -> list[tuple[bytes, bytes]]:
    headers = [location(enqueued.id)]
    if enqueued.replayed:
        headers.append(_REPLAYED)
    elif enqueued.effect != CREATED:
        headers.append((b"unique-effect", enqueued.effect.encode()))
    return headers


def key_of(request: Request) -> str | None:
    """The Idempotency-Key header, read; None without one. Raises InvalidJob."""
    header = request.header(b"idempotency-key")
    if header is None:
        return None
    if sum(name == b"idempotency-key" for name, _ in request.scope["headers"]) > 1:
        raise InvalidJob("the header is there twice; send it once", field="idempotency_key")
    return check_key(header.strip())
