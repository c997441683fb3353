"""What is printed when the server is ready: where it is and a request to paste."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence

from server.models.assets import ModelAssets
from server.settings import ServeSettings


def base_url(settings: ServeSettings, port: int) -> str:
    """Address a client on this machine can use."""
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host, settings.host)
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    scheme = "https" if settings.ssl_certfile else "http"
    return f"{scheme}://{host}:{port}{settings.root_path.rstrip('/')}"


def ready_text(
    settings: ServeSettings, assets: ModelAssets, port: int, *, num_groups: int = 1, group_size: int = 1
) -> str:
    """A ready line and a ``curl`` command that works when pasted into a shell, less the key: it is printed nowhere."""
    url = base_url(settings, port)
    name = settings.served_model_name[0] if settings.served_model_name else assets.name
    lines = [f"curl {url}/v1/chat/completions \\", "  -H 'Content-Type: application/json' \\"]
    if settings.api_key:
        lines.append("  -H 'Authorization: Bearer YOUR-KEY' \\")
    lines.append(f"  -d {shlex.quote(json.dumps(_example(name, settings, assets)))}")
    if assets.chat_template is None:
        lines[0] = f"curl {url}/v1/completions \\"
    copies = f", copies: {num_groups}" if num_groups > 1 else ""
    ranks = f", {'each ' if num_groups > 1 else ''}on {group_size} ranks" if group_size > 1 else ""
    return f"Scansion is ready: {name} on {url}{copies}{ranks}\n\nTry it:\n\n" + "\n".join(lines) + "\n"


def node_ready_text(assets: ModelAssets, ranks: Sequence[int]) -> str:
    """What a node without the HTTP port says."""
    named = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {ranks[0]} to {ranks[-1]}"
    return f"Scansion is ready: {named} of {assets.name}; node 0 has the HTTP port"


def _example(name: str, settings: ServeSettings, assets: ModelAssets) -> dict[str, object]:
    if assets.chat_template is None:
        return {"model": name, "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}
    example: dict[str, object] = {
        "model": name,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 64,
        "temperature": 0,
    }
    if settings.grammar_backend != "none":
        schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
        form = {"type": "json_schema", "json_schema": {"name": "capital", "schema": schema, "strict": True}}
        example["response_format"] = form
    return example
