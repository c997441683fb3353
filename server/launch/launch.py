"""From settings to a running server."""

from __future__ import annotations

import socket
from pathlib import Path

from constrained.vocabulary import Vocabulary
from server.access_log import configure_logging
from server.launch import exit_codes
from server.launch.child import ChildSpec
from server.launch.console import Console
from server.launch.entries import http_entry, scheduler_entry
from server.launch.errors import StartError
from server.launch.listener import bind_listener, listen
from server.launch.ready import ready_text
from server.launch.runtime_dir import runtime_dir
from server.launch.signals import exit_on_sigterm, queued_signals
from server.launch.supervisor import Supervisor
from server.models import ModelAssets, ModelResolutionError, resolve
from server.settings import ServeSettings

_PATIENCE = 4  # times the silence after which clients are told, until a hung scheduler is killed


def launch(settings: ServeSettings, console: Console) -> int:
    """Serve until a signal comes; returns one of :mod:`server.launch.exit_codes`."""
    configure_logging(settings.log_level, settings.log_format)
    try:
        # The port first: whoever has it, the person should know before a download.
        with bind_listener(settings.host, settings.port) as listener:
            with exit_on_sigterm():
                assets = resolve_model(settings, console)
                draft_assets = resolve_draft_model(settings, assets, console)
            with queued_signals() as signals, runtime_dir() as folder:
                listen(listener)
                port = listener.getsockname()[1]
                supervisor = Supervisor(
                    child_specs(settings, assets, listener, folder, draft_assets),
                    listener=listener,
                    console=console,
                    drain_timeout=settings.drain_timeout,
                    on_ready=lambda: console.say(ready_text(settings, assets, port)),
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


def child_specs(
    settings: ServeSettings,
    assets: ModelAssets,
    listener: socket.socket,
    folder: Path,
    draft_assets: ModelAssets | None = None,
) -> list[ChildSpec]:
    """One scheduler and the HTTP processes, joined by a socket in ``folder``."""
    endpoint = f"ipc://{folder}/scheduler.sock"
    metrics_directory = None
    if settings.http_workers > 1:
        metrics_directory = folder / "metrics"
        metrics_directory.mkdir()
    http_config = settings.http_config(endpoint, metrics_directory=metrics_directory)
    scheduler_arguments = (
        settings.log_level,
        settings.log_format,
        settings.scheduler_config(endpoint),
        settings.runner_config(assets),
        settings.grammar_config(),
        assets.eos_token_ids,
        assets.tokenizer_json,
        None if draft_assets is None else settings.runner_config(draft_assets),
    )
    return [
        ChildSpec(
            "scheduler",
            "scheduler",
            scheduler_entry,
            scheduler_arguments,
            silence_limit=_PATIENCE * settings.scheduler_timeout,
        ),
        *(
            ChildSpec(f"http-{i}", "http", http_entry, (http_config, assets, listener))
            for i in range(settings.http_workers)
        ),
    ]
