"""
Flask: a note and the job that indexes it are stored in one transaction.

    export DATABASE_URL=postgresql://localhost/notes
    fencepost migrate
    flask --app examples/flask_app.py create-tables
    flask --app examples/flask_app.py run

    curl -s localhost:5000/notes -H 'Content-Type: application/json' -d '{"text": "to be or not to be"}'
    curl -s 'localhost:5000/jobs/ID-OF-THE-JOB?wait=5'

The worker runs beside, in a process of its own:

    cd examples && fencepost worker flask_app:jobs

Threads and pre-forking servers (gunicorn with --preload, uWSGI) need nothing more: what
fencepost opens for a process, it opens when that process first needs it.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any
from uuid import UUID

import psycopg
from flask import Flask, g, request
from flask.typing import ResponseReturnValue

from fencepost import Fencepost, FencepostError, ResultTimeout

jobs = Fencepost()
web = Flask(__name__)


@jobs.job(queue="index", timeout=60)
def index_note(note_id: int) -> dict[str, int]:
    """Count the words of a note. Not async, so it runs in a thread of the worker."""
    with connect() as connection:
        row = connection.execute("select text from notes where id = %s", [note_id]).fetchone()
    return {} if row is None else dict(Counter(row[0].split()))


def connect() -> psycopg.Connection[Any]:
    return psycopg.connect(os.environ["DATABASE_URL"], autocommit=True)


def connection_of_request() -> psycopg.Connection[Any]:
    if "connection" not in g:
        g.connection = connect()
    connection: psycopg.Connection[Any] = g.connection
    return connection


@web.teardown_appcontext
def close_connection(_: BaseException | None) -> None:
    connection = g.pop("connection", None)
    if connection is not None:
        connection.close()


@web.errorhandler(FencepostError)
def refused(error: FencepostError) -> ResponseReturnValue:
    """Every error of fencepost knows its status: 404, 409, 503 while the database is away, …"""
    return {"error": str(error), "code": error.code}, error.http_status


@web.cli.command("create-tables")
def create_tables() -> None:
    """`flask --app examples/flask_app.py create-tables`, once."""
    with connect() as connection:
        connection.execute("create table if not exists notes (id bigserial primary key, text text not null)")


@web.post("/notes")
def add_note() -> ResponseReturnValue:
    text = request.get_json()["text"]
    connection = connection_of_request()
    with connection.transaction():
        row = connection.execute("insert into notes (text) values (%s) returning id", [text]).fetchone()
        assert row is not None
        indexing = index_note.within(connection).enqueue_sync(row[0])
    # Committed: both are there, and workers have been told. Had anything raised, neither would be.
    return {"note": row[0], "job": str(indexing.id)}, 202


@web.get("/jobs/<uuid:job_id>")
def show_job(job_id: UUID) -> ResponseReturnValue:
    """Where a job stands; with `?wait=5`, answers as soon as it has ended, and after five seconds anyway."""
    handle = jobs.handle(job_id)
    seconds = min(30.0, request.args.get("wait", 0.0, type=float))
    try:
        # `wait` runs any coroutine of a handle for code that isn't async.
        return {"status": "completed", "result": jobs.wait(handle.result(timeout=seconds))}
    except ResultTimeout:
        return {"status": jobs.wait(handle.status()), "result": None}
