"""The OpenAPI document against the API, by schemathesis: statuses, types, shapes, what is refused, methods, links."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.requests import TOKEN
from tests.fuzz.service import complaints, ready

CONFIG = Path(__file__).parent / "schemathesis.toml"


@pytest.mark.slow
def test_the_api_does_what_its_document_says(database_url: str, tmp_path: Path) -> None:
    with ready(database_url) as service:
        ended = subprocess.run(
            [
                *(Path(sys.executable).parent / "st", "--config-file", CONFIG, "--no-color"),
                *("run", f"{service.service.url}/openapi.json", "-H", f"Authorization: Bearer {TOKEN}"),
                *("--max-examples", "3", "--seed", "1"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert complaints(service.service) == []
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = re.search(r"(\d+) generated, (\d+) passed", ended.stdout)
    assert found, ended.stdout
    assert int(found[1]) == int(found[2]) > 300
    assert "16 selected / 16 total" in ended.stdout
