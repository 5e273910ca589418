"""Everything that can be done to a fencepost fleet: to its servers, its network, its pooler, its clocks."""

from chaos.world.server import Server, WorldError
from chaos.world.servers import Cluster, Failover

__all__ = ["Cluster", "Failover", "Server", "WorldError"]
