"""What a scheduler and its compile processes say to each other: msgpack frames over Unix sockets, nothing pickled."""

from __future__ import annotations

import struct

import msgspec

from constrained.config import GrammarConfig
from constrained.environment import GrammarEnvironment
from constrained.spec import GrammarSpec
from constrained.vocabulary import Vocabulary

_LENGTH = struct.Struct("<Q")
HEADER_BYTES = _LENGTH.size


class CompileJob(msgspec.Struct, frozen=True):
    spec: GrammarSpec


class CompileResult(msgspec.Struct, frozen=True, tag=True):
    """A grammar that compiled and was walked."""

    backend: str
    payload: bytes
    size_bytes: int
    compile_seconds: float
    notices: tuple[tuple[str, str], ...] = ()


class CompileRefusal(msgspec.Struct, frozen=True, tag=True):
    """An error for the client."""

    message: str
    pointer: str | None
    is_permanent: bool
    code: str | None = None
    is_memory: bool = False
    fault: str | None = None
    """The trace of an exception that nobody foresaw: the server's fault, whatever ``message`` says."""


CompileReply = CompileResult | CompileRefusal


# zygote control, one message a datagram; a socket travels with Fork


class Fork(msgspec.Struct, frozen=True, tag=True):
    key: int


class Kill(msgspec.Struct, frozen=True, tag=True):
    pid: int


class Pause(msgspec.Struct, frozen=True, tag=True):
    pid: int
    is_paused: bool
    """Whether to stop it or to let it go on."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    pass


class Forked(msgspec.Struct, frozen=True, tag=True):
    key: int
    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    pid: int
    signal: int
    grown_bytes: int
    """Most memory that it held beyond what it was forked with."""


ToZygote = Fork | Kill | Pause
FromZygote = Ready | Forked | Exited
MAX_CONTROL_BYTES = 4096


class _Environment(msgspec.Struct, frozen=True):
    token_bytes: tuple[bytes, ...]
    special_ids: tuple[int, ...]
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    config: GrammarConfig


def encode_environment(environment: GrammarEnvironment) -> bytes:
    return msgspec.msgpack.encode(
        _Environment(
            token_bytes=environment.vocabulary.token_bytes,
            special_ids=tuple(sorted(environment.vocabulary.special_ids)),
            vocab_size=environment.vocab_size,
            eos_token_ids=environment.eos_token_ids,
            config=environment.config,
        ),
        enc_hook=str,  # paths
    )


def decode_environment(data: bytes) -> GrammarEnvironment:
    plain = msgspec.msgpack.decode(data, type=_Environment, dec_hook=lambda kind, value: kind(value))
    vocabulary = Vocabulary(plain.token_bytes, frozenset(plain.special_ids))
    return GrammarEnvironment(vocabulary, plain.vocab_size, plain.eos_token_ids, plain.config)


def frame(message: CompileJob | CompileReply) -> bytes:
    """One message with its length in front."""
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data


def frame_length(header: bytes | bytearray) -> int:
    """Length of the message behind a header of :data:`HEADER_BYTES` bytes."""
    length: int = _LENGTH.unpack(header)[0]
    return length


decode_job = msgspec.msgpack.Decoder(CompileJob).decode
decode_reply = msgspec.msgpack.Decoder(CompileReply).decode
decode_to_zygote = msgspec.msgpack.Decoder(ToZygote).decode
decode_from_zygote = msgspec.msgpack.Decoder(FromZygote).decode
encode_control = msgspec.msgpack.Encoder().encode
