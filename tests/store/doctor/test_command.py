"""`fencepost doctor` and `fencepost grant`, as processes: what they print, and their exit codes."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
import sys
import uuid
from contextlib import suppress

import pytest

from fencepost.store.grants import GRANTS, Purpose
from tests.cli.test_commands import fencepost

from .conftest import Ward

pytestmark = pytest.mark.anyio


def doctor(ward: Ward, *words: str) -> subprocess.CompletedProcess[str]:
    return fencepost("doctor", *words, DATABASE_URL=ward.url)


@pytest.mark.slow
async def test_a_healthy_database(ward: Ward) -> None:
    ended = doctor(ward)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[-1] == "all is well"
    assert {line.split()[0] for line in lines[:-1]} == {"OK"}
    assert len(lines) == 19
    assert doctor(ward, "--strict").returncode == 0


async def test_warnings_alone_are_no_failure_unless_asked_for(ward: Ward) -> None:
    await ward.execute("update fencepost.queues set paused_at = now()")
    ended = doctor(ward)
    assert ended.returncode == 0
    first, what, remedy = ended.stdout.splitlines()[:3]
    assert first == "WARNING  queues.paused"
    assert "queue default is paused" in what
    assert remedy.strip() == "do: when it may go on: POST /queues/default/resume"
    assert ended.stdout.splitlines()[-1].startswith("0 errors, 1 warning; docs/how-to/doctor.md")
    assert doctor(ward, "--strict").returncode == 1


async def test_on_a_terminal_sentences_keep_to_its_width_and_remedies_stay_whole(ward: Ward) -> None:
    role = await ward.reader()
    await ward.execute(f"revoke pg_read_all_stats from {role}")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "fencepost", "doctor"]
    environment = {**os.environ, "DATABASE_URL": ward.url, "COLUMNS": "80", "NO_COLOR": "1"}
    process = await asyncio.create_subprocess_exec(
        *command, stdout=theirs, stderr=asyncio.subprocess.DEVNULL, env=environment
    )
    os.close(theirs)
    text = b""
    with suppress(OSError):
        while piece := await asyncio.to_thread(os.read, ours, 65536):
            text += piece
    os.close(ours)
    assert await process.wait() == 0
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text.decode()).splitlines()
    start = lines.index("WARNING  visibility.limited")
    assert lines[start + 1].startswith(f"         role {role} doesn't see")
    assert f'         do: as a superuser: grant pg_read_all_stats to "{role}";' in lines
    assert [line for line in lines if len(line) > 80 and not line.startswith("         do: ")] == []


@pytest.mark.slow
async def test_errors_come_first_and_are_a_failure(ward: Ward) -> None:
    await ward.execute("update fencepost.queues set paused_at = now(); delete from fencepost.pending")
    ended = doctor(ward, "--json")
    assert ended.returncode == 1
    report = json.loads(ended.stdout)
    assert (report["status"], report["errors"], report["warnings"]) == ("error", 1, 0)
    wrong = [one for one in report["findings"] if one["severity"] != "ok"]
    assert [one["code"] for one in wrong] == ["audit.lost"]
    assert set(wrong[0]) == {"code", "severity", "what", "remedy"}
    assert doctor(ward).stdout.startswith("ERROR    audit.lost\n")
    assert doctor(ward, "--quick").returncode == 0


async def test_nothing_to_look_at(ward: Ward) -> None:
    gone = fencepost("doctor", DATABASE_URL="postgresql://nobody@127.0.0.1:1/nothing")
    assert (gone.returncode, gone.stdout) == (6, "")
    assert gone.stderr.startswith("fencepost: the database is not available")
    wrong = fencepost("doctor", DATABASE_URL=ward.url.replace("/ward_", "/other_"))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    refused = doctor(ward, "--patience", "soon")
    assert refused.returncode == 2
    assert "--patience" in refused.stderr


async def test_nothing_to_look_at_is_a_report_too(ward: Ward) -> None:
    """Or a script that pipes it into something would see nothing, and that this ended well."""
    for url, code in (
        ("postgresql://nobody@127.0.0.1:1/nothing", 6),
        (ward.url.replace("/ward_", "/other_"), 2),
    ):
        ended = fencepost("doctor", "--json", DATABASE_URL=url)
        assert ended.returncode == code
        report = json.loads(ended.stdout)
        assert (report["status"], report["errors"], report["warnings"]) == ("error", 1, 0)
        [found] = report["findings"]
        assert (found["code"], found["severity"]) == ("server.unreachable", "error")
        assert ended.stderr == f"fencepost: {found['what']}\n"
        assert found["remedy"]
    refused = fencepost("doctor", "--json", "--patience", "soon", DATABASE_URL=ward.url)
    assert (refused.returncode, refused.stdout) == (2, "")


@pytest.mark.slow
async def test_grant(ward: Ward) -> None:
    role = f"reader_{uuid.uuid4().hex[:12]}"
    missing = fencepost("grant", role, "--to", "worker", DATABASE_URL=ward.url)
    assert missing.returncode == 2
    assert f"there is no role {role!r}; have it made first: create role" in missing.stderr
    await ward.execute(f"create role {role}")
    printed = fencepost("grant", role, "--to", "producer", "--to", "reader", "--sql")
    assert printed.returncode == 0
    await ward.execute(printed.stdout)
    holds = f"select has_table_privilege('{role}', 'fencepost.jobs', 'select')"
    assert await ward.sql.fetchval(holds)
    done = fencepost("grant", role, "--to", "producer", DATABASE_URL=ward.url)
    assert (done.returncode, done.stderr) == (0, f"{role} is set to: producer, in the schema fencepost\n")
    assert not await ward.sql.fetchval(holds)
    await ward.execute("grant select on fencepost.jobs to public")
    told = fencepost("grant", role, "--to", "producer", DATABASE_URL=ward.url).stderr.splitlines()[1]
    assert told == "it may do more, through PUBLIC, another role or default privileges: select on jobs"
    assert fencepost("grant", role, "--revoke", DATABASE_URL=ward.url).returncode == 0
    for words in ((), ("--revoke", "--to", "reader")):
        assert fencepost("grant", role, *words, DATABASE_URL=ward.url).returncode == 2


async def test_a_role_that_is_granted_has_the_words_of_its_list(ward: Ward) -> None:
    printed = fencepost("grant", 'od"d', "--to", "worker", "--sql", "--schema", "Job Queue").stdout
    for grant in GRANTS[Purpose.WORKER]:
        assert grant.sql('od"d', "Job Queue") + ";" in printed
    assert 'to "od""d";' in printed
    assert '"Job Queue".jobs' in printed
