"""From settings to a running server."""

from __future__ import annotations

import contextlib
import logging
import os
import socket

from constrained.vocabulary import Vocabulary
from server.http.access_log import configure_logging
from server.launch import exit_codes
from server.launch.console import Console
from server.launch.errors import StartError
from server.launch.listener import bind_listener, is_loopback, listen
from server.launch.processes.restarts import RestartPolicy
from server.launch.processes.specs import http_specs, rank_specs
from server.launch.ranks.devices import count_devices
from server.launch.ranks.placement import Placement, placement
from server.launch.ranks.rendezvous import rendezvous_listeners
from server.launch.ready import node_ready_text, ready_text
from server.launch.runtime_dir import runtime_dir
from server.launch.signals import exit_on_sigterm, queued_signals
from server.launch.supervisor import Supervisor
from server.models import ModelAssets, ModelResolutionError, resolve
from server.settings import ServeSettings

_logger = logging.getLogger("scansion.launch")

_OPEN_TO_ALL = "--host %s without --api-key: everyone who can reach the port can use this server"


def launch(settings: ServeSettings, console: Console) -> int:
    """Serve until a signal comes; returns one of :mod:`server.launch.exit_codes`."""
    configure_logging(settings.log_level, settings.log_format)
    try:
        place = placement(settings, os.environ)
        num_devices = count_devices(settings, place, os.environ)
        with contextlib.ExitStack() as stack:
            # The ports first: whoever has them, the person should know before a download.
            listener = None
            if place.serves_http:
                listener = stack.enter_context(bind_listener(settings.host, settings.port))
                if not settings.api_key and not is_loopback(listener):
                    _logger.warning(_OPEN_TO_ALL, settings.host)
            meetings = stack.enter_context(rendezvous_listeners(place))
            with exit_on_sigterm():
                assets = resolve_model(settings, console)
                draft_assets = resolve_draft_model(settings, assets, console)
            signals, folder = stack.enter_context(queued_signals()), stack.enter_context(runtime_dir())
            specs = rank_specs(settings, place, num_devices, assets, draft_assets, meetings, folder)
            if listener is not None:
                listen(listener)
                specs += http_specs(settings, place, assets, listener, folder)
            supervisor = Supervisor(
                specs,
                listener=listener,
                console=console,
                drain_timeout=settings.drain_timeout,
                on_ready=lambda: console.say(_ready_text(settings, place, assets, listener)),
                policy=RestartPolicy if place.restarts else lambda: RestartPolicy(max_crashes=1),
            )
            console.stage("Starting")
            return supervisor.run(signals)
    except (StartError, ModelResolutionError) as error:
        console.fail(str(error))
        return exit_codes.FAILED_TO_START


def resolve_model(settings: ServeSettings, console: Console) -> ModelAssets:
    """The model's files on this machine, fetched if need be."""
    return resolve(
        settings.model,
        revision=settings.revision,
        tokenizer=settings.tokenizer,
        chat_template=settings.chat_template,
        served_model_name=settings.served_model_name[0] if settings.served_model_name else None,
        load_format=settings.load_format,
        context_length=settings.context_length,
        progress=console,
    )


def resolve_draft_model(settings: ServeSettings, assets: ModelAssets, console: Console) -> ModelAssets | None:
    """The draft model's files, if one is wanted.

    Raises
    ------
    StartError
        Its token ids mean other texts than the model's.
    """
    if settings.draft_model is None:
        return None
    draft = resolve(settings.draft_model, load_format=settings.load_format, progress=console)
    vocabularies = [Vocabulary.from_tokenizer_json(one.tokenizer_json) for one in (assets, draft)]
    if vocabularies[0].token_bytes != vocabularies[1].token_bytes:
        raise StartError(
            f"the draft model {settings.draft_model} has another tokenizer than {assets.name}: its tokens mean other "
            "texts; choose a smaller model of the same family"
        )
    return draft


def _ready_text(settings: ServeSettings, place: Placement, assets: ModelAssets, listener: socket.socket | None) -> str:
    if listener is None:
        return node_ready_text(assets, place.ranks)
    port = listener.getsockname()[1]
    return ready_text(settings, assets, port, num_groups=place.num_groups, group_size=place.group_size)
