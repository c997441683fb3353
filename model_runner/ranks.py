"""Collectives between the ranks of a tensor-parallel group: gloo between CPUs, NCCL between GPUs.

Two process groups over the same ranks. Tensors of the model travel on the device's; messages of the scheduler and
grammar flags, which live in the CPU's memory, on one of their own, so that neither waits for the other.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from model_runner.config import RankConfig
from model_runner.errors import ModelLoadError, RankError

_INLINE_BYTES = 4096
"""Longest message that travels together with its length."""
_LENGTH_BYTES = 8
_LEAVING_TIMEOUT = timedelta(seconds=5)
"""How long the rank that serves the store stays for ranks that may read why the group cannot be."""


class Ranks:
    """
    Meets the other ranks, and is this rank's end of every collective.

    Every rank must make the same calls in the same order.

    Parameters
    ----------
    config : RankConfig
        This rank's place.
    device : torch.device
        Where the model is.

    Raises
    ------
    ModelLoadError
        If the ranks do not meet within ``start_timeout``.
    """

    def __init__(self, config: RankConfig, device: torch.device) -> None:
        self.rank = config.rank
        self.size = config.size
        self.device = device
        self._num_meetings = 0
        self._serves_store = config.listener is not None
        self._start_timeout = timedelta(seconds=config.start_timeout)
        timeout = timedelta(seconds=config.timeout)
        _choose_interface(config.host, config.port)
        try:
            self._store = _open_store(config, self._start_timeout)
            self._meet(config)
            dist.init_process_group(
                backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=self._store,
                rank=config.rank,
                world_size=config.size,
                timeout=timeout,
                device_id=device if device.type == "cuda" else None,
            )
            self._control = dist.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelLoadError(
                f"rank {config.rank} of {config.size} did not meet the others at {config.host}:{config.port}: {error}"
            ) from error

    def compare(self, facts: Mapping[str, str]) -> None:
        """
        Check that every rank states the same facts.

        Raises
        ------
        ModelLoadError
            If one differs, on every rank; the message names the fact, the ranks and the values.
        """
        key = f"facts/{self._next_meeting()}"
        self._store.set(f"{key}/{self.rank}", json.dumps(dict(facts)))
        stated: list[dict[str, str]] = []
        for rank in range(self.size):
            try:
                stated.append(json.loads(self._store.get(f"{key}/{rank}")))
            except RuntimeError as error:
                raise ModelLoadError(f"rank {rank} did not say what it would load: {error}") from error
        self.wait_for_all("reading what the others would load")
        for rank, own in enumerate(stated):
            for name in sorted(stated[0].keys() | own.keys()):
                if stated[0].get(name) != own.get(name):
                    raise ModelLoadError(
                        f"rank {rank} and rank 0 differ in {name}: {own.get(name)!r} and {stated[0].get(name)!r}; "
                        "start every node with the same version, model and settings"
                    )

    def wait_for_all(self, name: str) -> None:
        """Return once every rank has called this with the same ``name``: for what may take minutes, such as loading."""
        key = f"reached/{self._next_meeting()}"
        self._store.set(f"{key}/{self.rank}", "1")
        try:
            self._store.wait([f"{key}/{rank}" for rank in range(self.size)], self._start_timeout)
            self._answered(key, self._start_timeout)
        except RuntimeError as error:
            raise ModelLoadError(f"not every rank was done with {name}: {error}") from error

    def sum_(self, tensor: torch.Tensor, *, is_exact: bool) -> torch.Tensor:
        """
        Add up every rank's tensor, in place; the result is the same on all of them.

        Parameters
        ----------
        tensor : torch.Tensor
            Contiguous, of one shape on every rank, on the model's device.
        is_exact : bool
            Add in rank order, so that no element's bits depend on its place in the tensor.
        """
        try:
            if is_exact and self.size > 2:  # two summands have one order
                parts = [torch.empty_like(tensor) for _ in range(self.size)]
                dist.all_gather(parts, tensor)
                torch.add(parts[0], parts[1], out=tensor)
                for part in parts[2:]:
                    tensor += part
            else:
                dist.all_reduce(tensor)
        except RuntimeError as error:
            raise RankError(str(error)) from error
        return tensor

    def gather_columns(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Rank 0: every rank's [T, C] side by side, [T, size x C]; ``None`` on the others."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)] if not self.rank else None
        try:
            dist.gather(tensor.contiguous(), parts, dst=0)
        except RuntimeError as error:
            raise RankError(str(error)) from error
        return None if parts is None else torch.cat(parts, dim=1)

    def all_gather_columns(self, tensor: torch.Tensor) -> torch.Tensor:
        """Every rank's [T, C] side by side, [T, size x C], on every rank."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        try:
            dist.all_gather(parts, tensor.contiguous())
        except RuntimeError as error:
            raise RankError(str(error)) from error
        return torch.cat(parts, dim=1)

    def broadcast_(self, tensor: torch.Tensor) -> torch.Tensor:
        """Rank 0's tensor on every rank, in place, on the model's device."""
        try:
            dist.broadcast(tensor, src=0)
        except RuntimeError as error:
            raise RankError(str(error)) from error
        return tensor

    def broadcast_bytes(self, message: bytes = b"") -> bytes:
        """Rank 0's ``message``, on every rank. Blocks until rank 0 sends one."""
        head = bytearray(_LENGTH_BYTES + _INLINE_BYTES)
        if not self.rank:
            head[:_LENGTH_BYTES] = len(message).to_bytes(_LENGTH_BYTES, "little")
            inline = message[:_INLINE_BYTES]
            head[_LENGTH_BYTES : _LENGTH_BYTES + len(inline)] = inline
        self._broadcast_buffer(head)
        length = int.from_bytes(head[:_LENGTH_BYTES], "little")
        if length <= _INLINE_BYTES:
            return bytes(head[_LENGTH_BYTES : _LENGTH_BYTES + length])
        body = bytearray(length) if self.rank else bytearray(message)
        self._broadcast_buffer(body)
        return bytes(body)

    def all_gather(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Every rank's CPU tensor, in rank order; all of one shape."""
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        try:
            dist.all_gather(parts, tensor, group=self._control)
        except RuntimeError as error:
            raise RankError(str(error)) from error
        return parts

    def smallest(self, number: int) -> int:
        """The smallest of every rank's numbers."""
        return min(int(part) for part in self.all_gather(torch.tensor([number], dtype=torch.int64)))

    def close(self) -> None:
        """Leave the group; nobody else has to be there."""
        dist.destroy_process_group()

    def _next_meeting(self) -> int:
        self._num_meetings += 1
        return self._num_meetings

    def _meet(self, config: RankConfig) -> None:
        """Wait for every other rank; say which does not come, or is of another group than this one takes it for."""
        if self._store.add(f"met/{self.rank}", 1) > 1:
            raise ModelLoadError(f"another process is rank {self.rank} already; give every node its own --node-rank")
        self._store.set(f"size/{self.rank}", str(self.size))
        for rank in range(self.size):
            try:
                size = int(self._store.get(f"size/{rank}"))
            except RuntimeError as error:
                raise ModelLoadError(
                    f"rank {rank} of {self.size} did not come to {config.host}:{config.port}: {error}"
                ) from error
            if size != self.size:
                with contextlib.suppress(RuntimeError):  # not all of this group need be there
                    self._answered("size", _LEAVING_TIMEOUT)
                raise ModelLoadError(
                    f"rank {rank} is of a group of {size}, and rank {self.rank} of one of {self.size}; start every "
                    "node with the same --tp, --dp and --nnodes"
                )

    def _answered(self, key: str, timeout: timedelta) -> None:
        """Say that the store has answered this rank; the rank that serves it waits for the others to say so.

        A rank that leaves takes the store along, with every answer that is still under way.
        """
        self._store.set(f"{key}/answered/{self.rank}", "1")  # sends, and waits for no answer
        if self._serves_store:
            self._store.wait([f"{key}/answered/{rank}" for rank in range(self.size)], timeout)

    def _broadcast_buffer(self, buffer: bytearray) -> None:
        try:
            dist.broadcast(torch.frombuffer(buffer, dtype=torch.uint8), src=0, group=self._control)
        except RuntimeError as error:
            raise RankError(str(error)) from error


def _open_store(config: RankConfig, timeout: timedelta) -> Store:
    listener = config.listener
    store: Store = TCPStore(
        config.host,
        config.port,
        is_master=listener is not None,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=None if listener is None else os.dup(listener.fileno()),
    )
    return PrefixStore(config.prefix, store) if config.prefix else store


def _choose_interface(host: str, port: int) -> None:
    """Let gloo and NCCL talk over the interface that leads to rank 0, where the user has not chosen one."""
    address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
        probe.connect(address[4])  # sends nothing: it only asks for the route
        own = probe.getsockname()[0]
    for name, addresses in psutil.net_if_addrs().items():
        if any(each.address.partition("%")[0] == own for each in addresses):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            os.environ.setdefault("NCCL_SOCKET_IFNAME", name)
            return
