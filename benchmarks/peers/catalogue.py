"""
The peers: what each needs to be installed, and what it does with a finished job.

Versions are pinned, so that two runs a month apart measure the same code. To add a
peer, add its entry here and its adapter in `python/adapters/` or `node/`; the README
says what an adapter has.
"""

from __future__ import annotations

from dataclasses import dataclass

NODE_PACKAGES = {"graphile-worker": "0.18.0", "pg-boss": "12.38.0", "pg": "8.23.1"}
"""What the one node_modules of all Node peers holds."""
NODE_OLDEST = (22, 18)
"""The oldest Node that all of them accept."""
NODE_VERSION = "24.22.3"
"""The Node to get from npm where the machine's own is older."""


@dataclass(frozen=True)
class Peer:
    """One job queue."""

    name: str
    language: str
    """`python`, `node`, or `own` for fencepost in the environment that runs the benchmark."""
    kept: str
    """Whether a finished job can still be looked up."""
    fenced: str
    """Whether the outcome of an attempt that was given up is refused."""
    requirements: tuple[str, ...] = ()
    python: tuple[int, int] = (3, 11)
    """The oldest Python it runs on."""
    default: bool = True
    """Whether a run includes it when nobody says which."""


_PSYCOPG = ("psycopg[binary,pool]==3.3.*", "uvloop>=0.22")

PEERS = (
    Peer("fencepost", "own", kept="yes", fenced="yes"),
    Peer(
        "pgqueuer",
        "python",
        kept="a log row without payload",
        fenced="no",
        requirements=("pgqueuer==1.6.0", "asyncpg>=0.31", "uvloop>=0.22"),
    ),
    Peer("procrastinate", "python", kept="yes", fenced="no", requirements=("procrastinate==3.10.0", *_PSYCOPG)),
    Peer("graphile-worker", "node", kept="no", fenced="no"),
    Peer("pg-boss", "node", kept="yes", fenced="in part"),
    Peer(
        "saq",
        "python",
        kept="10 minutes",
        fenced="no",
        requirements=("saq[postgres]==0.26.4", *_PSYCOPG),
        default=False,
    ),
    Peer("chancy", "python", kept="yes", fenced="no", requirements=("chancy==0.26.0", *_PSYCOPG), default=False),
    Peer(
        "oban",
        "python",
        kept="yes",
        fenced="no",
        requirements=("oban==0.7.0", "orjson>=3.11", *_PSYCOPG),
        python=(3, 12),
        default=False,
    ),
)


def chosen(names: str | None) -> list[Peer]:
    """The peers of a comma-separated list; the default ones for None, every one for `all`. Raises ValueError."""
    if names is None:
        return [peer for peer in PEERS if peer.default]
    if names == "all":
        return list(PEERS)
    known = {peer.name: peer for peer in PEERS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise ValueError(f"no such peer: {', '.join(unknown) or repr(names)}; there are {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)]
