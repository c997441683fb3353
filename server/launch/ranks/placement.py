"""Which ranks this supervisor starts, and where they meet those of other machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from server.launch.errors import StartError
from server.settings import ServeSettings

_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class Placement:
    """The part of all ranks that is this supervisor's.

    Every group of ranks spans every node alike, so that rank 0 of each, and with it every socket to the HTTP processes,
    is on node 0.
    """

    num_groups: int = 1
    group_size: int = 1
    """Ranks of a group, on all nodes together."""
    ranks: tuple[int, ...] = (0,)
    """Of each group, the ranks that are started here."""
    first_local_rank: int = 0
    """Number of the first of them on this machine."""
    ranks_on_machine: int = 1
    """Of all groups, those of other supervisors on this machine (``torchrun``) too."""
    host: str = _LOOPBACK
    port: int = 0
    """Where group 0 meets, group 1 at the next port; 0 for any that are free."""
    store_prefix: str = ""
    binds_port: bool = True
    """Whether rank 0's supervisor opens the port; under ``torchrun`` it may be open already."""
    restarts: bool = True
    """Whether ranks that die are started again here."""

    @property
    def serves_http(self) -> bool:
        return 0 in self.ranks

    def local_rank(self, group: int, rank: int) -> int:
        """Which of the machine's ranks this one is."""
        return self.first_local_rank + group * len(self.ranks) + self.ranks.index(rank)


def placement(settings: ServeSettings, environment: Mapping[str, str]) -> Placement:
    """
    From the settings or, where they say nothing of nodes, from ``torchrun``'s variables.

    Raises
    ------
    StartError
        ``torchrun``'s variables contradict each other or the settings.
    """
    says_nodes = settings.nnodes > 1 or settings.dist_init_addr is not None
    if not says_nodes and environment.get("WORLD_SIZE", "1") != "1" and "RANK" in environment:
        return _from_torchrun(settings, environment)
    per_node = settings.tp // settings.nnodes
    host, port = settings.rendezvous or (_LOOPBACK, 0)
    return Placement(
        num_groups=settings.dp,
        group_size=settings.tp,
        ranks=tuple(range(settings.node_rank * per_node, (settings.node_rank + 1) * per_node)),
        ranks_on_machine=settings.dp * per_node,
        host=host,
        port=port,
    )


def _from_torchrun(settings: ServeSettings, environment: Mapping[str, str]) -> Placement:
    rank, size = _number(environment, "RANK"), _number(environment, "WORLD_SIZE")
    if rank >= size:
        raise StartError(f"RANK is {rank}, but WORLD_SIZE is {size}; unset both if torchrun did not set them")
    if settings.dp > 1:
        raise StartError("under torchrun every process is a rank of one group: leave out --dp, or torchrun")
    if settings.tp not in (1, size):
        raise StartError(f"--tp {settings.tp} and torchrun's WORLD_SIZE={size} differ; leave out --tp")
    if not environment.get("MASTER_ADDR"):
        raise StartError("RANK and WORLD_SIZE are set, but MASTER_ADDR is not: start with torchrun, or unset them")
    has_store = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Placement(
        group_size=size,
        ranks=(rank,),
        first_local_rank=_number(environment, "LOCAL_RANK", rank),
        ranks_on_machine=_number(environment, "LOCAL_WORLD_SIZE", 1),
        host=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT"),
        # The store outlives the ranks: those that are started again must not read what the dead have written.
        store_prefix=f"scansion-{restart}" if has_store else "",
        binds_port=not has_store,
        restarts=False,
    )


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not text.isdigit():
        raise StartError(f"the environment variable {name} must be a whole number, got {text!r}; torchrun sets it")
    return int(text)
