"""
Everything in one file: declare jobs, hand them in, run them here, print what came of them.

    python examples/script.py

DATABASE_URL says which PostgreSQL to use. Without it a private one is started, which takes
`pip install 'fencepost[embedded]'`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from fencepost import Constant, Context, Fencepost, JobFailed, Permanent

app = Fencepost()


@dataclass
class Line:
    number: int
    text: str


@app.job
async def count_words(line: Line) -> int:
    if not line.text:
        raise Permanent(f"line {line.number} is empty")
    return len(line.text.split())


@app.job(max_attempts=3, backoff=Constant(0.1))
def fetch(context: Context, page: str) -> str:
    """Not async, so it runs in a thread. The first attempt fails, as networks do."""
    if context.attempt == 1:
        raise ConnectionError("the network is down")
    return f"{page}, fetched by attempt {context.attempt}"


async def main() -> None:
    lines = [Line(1, "from the first job"), Line(2, "to the last"), Line(3, "")]
    # The producer's connections, and a worker in this event loop.
    async with app, app.worker():
        counts = await count_words.enqueue_many([count_words.call(line) for line in lines])
        page = await fetch.options(priority=5).enqueue("index.html")
        for line, handle in zip(lines, counts, strict=True):
            try:
                print(f"line {line.number}: {await handle.result(timeout=30)} words")
            except JobFailed as error:
                print(f"line {line.number}: {error}")
        print(await page.result(timeout=30))


if __name__ == "__main__":
    asyncio.run(main())
