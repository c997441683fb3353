"""Which ranks a supervisor starts, on which devices, and where they meet; and what is refused before anything loads."""

from __future__ import annotations

import multiprocessing.reduction
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest

from model_runner.config import RankConfig, RunnerConfig
from server.cli.errors import UsageError
from server.cli.load_settings import load_settings
from server.launch.errors import StartError
from server.launch.processes import specs
from server.launch.ranks import devices
from server.launch.ranks.placement import Placement, placement
from server.launch.ranks.rendezvous import rendezvous_listeners
from server.models.assets import ModelAssets
from server.settings import ServeSettings

ASSETS = ModelAssets(
    name="m", weights_path=Path("w"), tokenizer_json=Path("t"), chat_template=None, bos_token=None,
    eos_token=None, eos_token_ids=(), add_bos=False, context_length=8,
)  # fmt: skip


def place(environment: dict[str, str] | None = None, **values: Any) -> Placement:
    return placement(ServeSettings(**values), environment or {})


def ranks_of(
    num_devices: int = 0, environment: dict[str, str] | None = None, **values: Any
) -> list[tuple[str, RunnerConfig, RankConfig | None]]:
    """Name, runner and rank of each scheduler process, made as the launcher makes them."""
    settings = ServeSettings(**values)
    there = placement(settings, environment or {})
    with rendezvous_listeners(there) as meetings:
        made = specs.rank_specs(settings, there, num_devices, ASSETS, None, meetings, Path("/run"))
        return [(spec.name, spec.arguments[3], spec.arguments[8]) for spec in made]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_one_rank_is_alone() -> None:
    [(name, runner, rank)] = ranks_of()
    assert (name, rank) == ("scheduler", None)
    assert runner == ServeSettings().runner_config(ASSETS)


def test_every_process_that_stops_speaking_is_killed_in_the_end(tmp_path: Path) -> None:
    settings = ServeSettings(http_workers=2, scheduler_timeout=5.0)
    there = placement(settings, {})
    with socket.create_server(("127.0.0.1", 0)) as listener, rendezvous_listeners(there) as meetings:
        ranks = specs.rank_specs(settings, there, 0, ASSETS, None, meetings, tmp_path)
        processes = specs.http_specs(settings, there, ASSETS, listener, tmp_path)
    assert [spec.silence_limit for spec in [*ranks, *processes]] == [20.0, 60.0, 60.0]


def test_the_ranks_of_each_group_meet_at_their_own_port() -> None:
    made = ranks_of(tp=2, dp=2)
    assert [name for name, _, _ in made] == [f"scheduler-{group} rank {rank}" for group in (0, 1) for rank in (0, 1)]
    ranks = [rank for _, _, rank in made if rank is not None]
    assert [(rank.rank, rank.size, rank.local_rank) for rank in ranks] == [(0, 2, 0), (1, 2, 1), (0, 2, 2), (1, 2, 3)]
    assert ranks[0].port == ranks[1].port != ranks[2].port == ranks[3].port
    assert [rank.listener is not None for rank in ranks] == [True, False, True, False]


@pytest.mark.parametrize("check", [False, True])
def test_plans_are_checked_on_every_rank_or_on_none(check: bool) -> None:
    assert [rank and rank.checks_plans for _, _, rank in ranks_of(tp=2, check_plans=check)] == [check, check]


def test_ranks_on_cpus_share_cores_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specs, "choose_num_threads", lambda _: 9)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert {(runner.num_threads, runner.memory_fraction) for _, runner, _ in ranks_of(tp=2, dp=2)} == {(2, 0.85 / 4)}
    assert {runner.num_threads for _, runner, _ in ranks_of(tp=16)} == {1}
    assert {runner.num_threads for _, runner, _ in ranks_of(tp=2, num_threads=5)} == {5}


def test_each_rank_has_a_cuda_device_of_its_own() -> None:
    assert [runner.device for _, runner, _ in ranks_of(num_devices=2, dp=2)] == ["cuda:0", "cuda:1"]
    made = ranks_of(num_devices=4, tp=2, dp=2, device="cuda")
    assert [(runner.device, rank and rank.local_rank) for _, runner, rank in made] == [("cuda", n) for n in range(4)]
    assert {runner.memory_fraction for _, runner, _ in made} == {0.85}


def test_nodes_have_their_ranks_of_every_group() -> None:
    port = free_port()
    address = {"dist_init_addr": f"127.0.0.1:{port}"}
    first, second = (place(tp=4, dp=2, nnodes=2, node_rank=node, **address) for node in (0, 1))
    assert (first.ranks, second.ranks) == ((0, 1), (2, 3))
    assert (first.serves_http, second.serves_http) == (True, False)
    assert [second.local_rank(group, rank) for group in (0, 1) for rank in (2, 3)] == [0, 1, 2, 3]
    made = ranks_of(tp=4, dp=2, nnodes=2, node_rank=1, **address)
    assert [(rank.rank, rank.port, rank.listener) for _, _, rank in made if rank is not None] == [
        (2, port, None), (3, port, None), (2, port + 1, None), (3, port + 1, None),
    ]  # fmt: skip


TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "node0",
    "MASTER_PORT": "29400", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2",
}  # fmt: skip


def test_torchrun_says_which_rank_this_is() -> None:
    there = place(TORCHRUN)
    assert (there.ranks, there.group_size, there.ranks_on_machine) == ((3,), 4, 2)
    assert (there.host, there.port, there.binds_port, there.restarts) == ("node0", 29400, False, False)
    [(_, _, rank)] = ranks_of(0, TORCHRUN)
    assert rank is not None
    assert (rank.rank, rank.local_rank, rank.listener, rank.prefix) == (3, 1, None, "scansion-2")


def test_without_an_agent_store_rank_0_opens_torchruns_port() -> None:
    port = free_port()
    variables = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }
    [(_, _, rank)] = ranks_of(0, variables)
    assert rank is not None
    assert rank.listener is not None
    assert (rank.port, rank.prefix) == (port, "")


def test_flags_win_over_torchruns_variables() -> None:
    assert place(TORCHRUN, tp=2, nnodes=2, dist_init_addr="10.0.0.1:1").ranks == (0,)
    assert place({"RANK": "0", "WORLD_SIZE": "1"}, tp=2).ranks == (0, 1)


@pytest.mark.parametrize(
    ("changed", "values", "said"),
    [
        ({"RANK": "4"}, {}, "RANK is 4, but WORLD_SIZE is 4"),
        ({"RANK": "x"}, {}, "RANK must be a whole number"),
        ({"MASTER_PORT": ""}, {}, "MASTER_PORT must be a whole number"),
        ({"MASTER_ADDR": ""}, {}, "MASTER_ADDR is not"),
        ({}, {"tp": 2}, "--tp 2 and torchrun's WORLD_SIZE=4 differ"),
        ({}, {"dp": 2}, "leave out --dp"),
    ],
)
def test_contradictions_with_torchrun_are_told(changed: dict[str, str], values: dict[str, Any], said: str) -> None:
    with pytest.raises(StartError, match=said):
        place(TORCHRUN | changed, **values)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"tp": "0"}, "--tp: must be at least 1"),
        ({"node_rank": "1"}, "--node-rank must be below --nnodes, 1, got 1"),
        ({"tp": "2", "nnodes": "2"}, "--nnodes needs --dist-init-addr"),
        ({"tp": "3", "nnodes": "2", "dist_init_addr": "a:1"}, "--tp 3 cannot be spread evenly over --nnodes 2"),
        ({"dp": "2", "nnodes": "2", "dist_init_addr": "a:1"}, "start a server on each"),
        ({"tp": "2", "device": "cuda:1"}, "--device cuda:1 is one device"),
        ({"dist_init_addr": "a:1"}, "with --tp 1 there is one alone"),
        ({"dp": "3", "tp": "2", "dist_init_addr": "a:65534"}, "ports from 65534 to 65536"),
        *(({"dist_init_addr": text}, "must be HOST:PORT") for text in ("host", ":1", "a:", "a:0", "a:65536", "::1:2")),
    ],
)
def test_impossible_flags_are_told(flags: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load_settings(flags, None)


def test_ipv6_addresses_stand_in_brackets() -> None:
    assert ServeSettings(tp=2, dist_init_addr="[fd00::1]:29500").rendezvous == ("fd00::1", 29500)
    assert ServeSettings(tp=2, dist_init_addr="node-0.example:29500").rendezvous == ("node-0.example", 29500)


def test_a_busy_port_is_an_error_that_names_the_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartError, match=r"is in use; choose another with --dist-init-addr"):
            ranks_of(tp=2, dist_init_addr=address)


def test_an_address_of_another_machine_is_an_error() -> None:
    with pytest.raises(StartError, match="is no address of this machine"):
        ranks_of(tp=2, dist_init_addr="192.0.2.1:29500")
    with pytest.raises(StartError, match="there is no such address"):
        ranks_of(tp=2, dist_init_addr="no-such-host.invalid:29500")


def test_the_port_can_be_handed_to_one_rank_after_another() -> None:
    with rendezvous_listeners(place(tp=2)) as [listener]:
        assert listener is not None
        for _ in range(2):
            pickled = bytes(multiprocessing.reduction.ForkingPickler.dumps(listener))
            with pickle.loads(pickled) as received, socket.create_connection(listener.getsockname()):
                assert received.getsockname() == listener.getsockname()
                received.accept()[0].close()


@pytest.mark.parametrize(
    ("present", "visible", "usable"),
    [
        (4, None, 4), (4, "", 0), (4, "0,2", 2), (4, "-1", 0), (4, "1,-1,2", 1), (1, "0,1,2", 1), (0, "0", 0),
        (1, "MIG-a,MIG-b", 2), (0, "MIG-a", 0),
    ],
)  # fmt: skip
def test_devices_are_those_of_the_driver_that_are_visible(
    monkeypatch: pytest.MonkeyPatch, present: int, visible: str | None, usable: int
) -> None:
    monkeypatch.setattr(devices, "_driver_device_count", lambda: present)
    assert devices.cuda_device_count({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}) == usable


@pytest.mark.parametrize(
    ("values", "present", "result"),
    [
        ({"tp": 2}, 1, "2 ranks on this machine need as many CUDA devices, and there are 1"),
        ({"tp": 2, "dp": 2}, 2, "4 ranks on this machine"),
        ({"tp": 2, "device": "cuda"}, 0, "and there are 0"),
        ({"tp": 2, "device": "cpu"}, 1, 0),
        ({"tp": 2}, 0, 0),
        ({"tp": 2}, 2, 2),
        ({"device": "cuda"}, 0, 0),
    ],
)
def test_more_ranks_than_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, Any], present: int, result: str | int
) -> None:
    monkeypatch.setattr(devices, "cuda_device_count", lambda _: present)
    settings = ServeSettings(**values)
    if isinstance(result, str):
        with pytest.raises(StartError, match=result):
            devices.count_devices(settings, placement(settings, {}), {})
    else:
        assert devices.count_devices(settings, placement(settings, {}), {}) == result
