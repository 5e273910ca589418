"""The Flask example, under a server with threads and under one that forks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

import pytest

from tests.ports import free_port

from .support import Program, call, count, refuse_at_commit, run, wait_until_answering, worker


@contextmanager
def served(database_url: str) -> Iterator[str]:
    run("-m", "flask", "--app", "flask_app.py", "create-tables", DATABASE_URL=database_url)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Program(
        *("-m", "flask", "--app", "flask_app.py", "run", "--port", str(port), "--with-threads"),
        started="Running on",
        DATABASE_URL=database_url,
    ) as program:
        wait_until_answering(f"{url}/nothing", program)
        yield url


@pytest.mark.slow
def test_notes_of_many_threads_are_indexed_by_the_worker_beside(database_url: str) -> None:
    with (
        served(database_url) as url,
        worker("flask_app:jobs", DATABASE_URL=database_url),
        ThreadPoolExecutor(12) as clients,
    ):
        placed = list(clients.map(lambda n: call(f"{url}/notes", {"text": f"to be {n}"}), range(48)))
        assert {status for status, _ in placed} == {202}
        shown = list(clients.map(lambda answer: call(f"{url}/jobs/{answer[1]['job']}?wait=20"), placed))
    assert shown == [
        (200, {"status": "completed", "result": {"to": 1, "be": 1, str(number): 1}}) for number in range(48)
    ]


@pytest.mark.slow
async def test_a_note_that_is_refused_leaves_no_job(database_url: str) -> None:
    with served(database_url) as url:
        await refuse_at_commit(database_url, "notes", "new.text = 'secret'")
        assert call(f"{url}/notes", {"text": "secret"})[0] == 500
        assert (await count(database_url, "notes"), await count(database_url, "fencepost.jobs")) == (0, 0)
        assert call(f"{url}/notes", {"text": "open"})[0] == 202
        assert (await count(database_url, "notes"), await count(database_url, "fencepost.jobs")) == (1, 1)


@pytest.mark.slow
def test_an_error_of_fencepost_answers_with_its_status(database_url: str) -> None:
    with served(database_url) as url:
        status, answer = call(f"{url}/jobs/{uuid4()}")
        assert (status, answer["code"]) == (404, "job_not_found")


FORKING = """
import json, os, sys
from flask_app import connect, index_note, jobs, web

# The application is made, and has used its connections, before the server forks, as gunicorn --preload does.
before = index_note.enqueue_sync(1)
jobs.wait(before.status())

children = []
for number in range(4):
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        client = web.test_client()
        noted = client.post("/notes", json={"text": f"child {number}"}).get_json()
        # By the loop of a thread, which this process must have made for itself.
        plain = index_note.enqueue_sync(noted["note"])
        shown = client.get(f"/jobs/{noted['job']}?wait=20").get_json()
        result = jobs.wait(plain.result(timeout=20))
        os.write(writing, json.dumps([shown["result"], result]).encode())
        sys.exit(0)
    os.close(writing)
    children.append((pid, reading))

for pid, reading in children:
    with open(reading) as answer:
        print(answer.read())
    os.waitpid(pid, 0)
# The parent's are as they were.
print(json.dumps(jobs.wait(before.result(timeout=20))))
jobs.wait(index_note.enqueue(1))
"""


@pytest.mark.slow
def test_children_of_a_fork_enqueue_and_wait_by_themselves(database_url: str) -> None:
    run("-m", "flask", "--app", "flask_app.py", "create-tables", DATABASE_URL=database_url)
    with worker("flask_app:jobs", DATABASE_URL=database_url):
        said = run("-c", FORKING, DATABASE_URL=database_url).stdout.splitlines()
    assert [json.loads(line) for line in said] == [
        *([{"child": 1, str(number): 1}, {"child": 1, str(number): 1}] for number in range(4)),
        {},
    ]
