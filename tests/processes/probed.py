"""A worker that answers probes."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from pathlib import Path

from tests.service.support import Answer, wait_until

from .support import WorkerCommand


class ProbedWorker(WorkerCommand):
    """A running `fencepost worker` that answers probes."""

    def __init__(self, folder: Path, **environment: str) -> None:
        super().__init__(folder, PROBE_ADDR="127.0.0.1:0", **environment)

    def wait_until_listening(self) -> None:
        super().wait_until_listening()
        wait_until(lambda: any("probes and metrics on" in line for line in list(self.said)), 5, "its probes")
        self.url = next(re.search(r"http://\S+", line)[0] for line in self.said if "probes" in line)  # type: ignore[index]

    def ask(self, path: str, **headers: str) -> Answer:
        request = urllib.request.Request(self.url + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as response:
                return Answer(response.status, response.read().decode(), dict(response.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(), dict(error.headers))
