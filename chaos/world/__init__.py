"""Everything that can be done to a fencepost fleet: to its servers, its network, its pooler, its clocks."""

from chaos.world.clocks import Clock
from chaos.world.faults import Faults, Hold
from chaos.world.janitor import Janitor
from chaos.world.places import make_folder
from chaos.world.pooler import Pooler, find_pgbouncer
from chaos.world.proxy import Figures, Proxy
from chaos.world.server import Server, WorldError
from chaos.world.servers import Cluster, Failover
from chaos.world.world import Outage, World

__all__ = [
    "Clock",
    "Cluster",
    "Failover",
    "Faults",
    "Figures",
    "Hold",
    "Janitor",
    "Outage",
    "Pooler",
    "Proxy",
    "Server",
    "World",
    "WorldError",
    "find_pgbouncer",
    "make_folder",
]
