"""Chat templates, rendered as Hugging Face renders them (``transformers.utils.chat_template_utils``), but bounded.

Templates are the model's own and never come from a request. What a request adds to one (messages, tools, further
arguments) is data, in Jinja's immutable sandbox, with special-token spellings broken
(:mod:`server.text.protected_text`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from server.errors import BadRequestError
from server.models.assets import ModelAssets
from server.text.protected_text import ProtectedText

RESERVED_ARGUMENTS = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "bos_token",
        "eos_token",
        "raise_exception",
        "strftime_now",
        "tokenize",
        "chat_template",
    }
)
"""What ``chat_template_kwargs`` may not set: it has a field of its own, or is the server's."""


class ChatTemplateError(ValueError):
    """The model's template is not valid Jinja."""


_CHECK_DEADLINE = "scansion_check_deadline"


class _TemplateRaisedError(Exception):
    """The template called ``raise_exception``."""


class ChatTemplate:
    """A model's chat template.

    Parameters
    ----------
    assets
        Gives the source and the BOS and EOS spellings.
    protected_text
        Breaks special-token spellings in what comes from a request.
    timeout
        Seconds one rendering may take.
    max_chars
        Longest text one rendering may give.

    Raises
    ------
    ChatTemplateError
    """

    def __init__(self, assets: ModelAssets, protected_text: ProtectedText, *, timeout: float, max_chars: int) -> None:
        self._source = assets.chat_template
        self._special = {"bos_token": assets.bos_token or "", "eos_token": assets.eos_token or ""}
        self._protected_text = protected_text
        self._timeout = timeout
        self._max_chars = max_chars
        self._end_mark = protected_text.mark + protected_text.mark[::-1]
        try:
            self._template = None if self._source is None else _environment().from_string(self._source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template is not valid: {error}") from error
        self.knows_developer = self._source is not None and "developer" in self._source

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        tools: Sequence[dict[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        arguments: dict[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation.

        The result may hold marks of :class:`~server.text.protected_text.ProtectedText`; ``Tokenizer.encode_rendered``
        understands them.

        Raises
        ------
        BadRequestError
            The model has no template, the template refuses the messages, or a limit is hit.
        """
        if self._template is None:
            raise BadRequestError(
                "This model has no chat template; use /v1/completions with a prompt in the model's own format.",
                param="messages",
                code="no_chat_template",
            )
        protected = self._protected_text.protect(list(messages))
        if continue_final_message:
            protected[-1]["content"] += self._end_mark + " "
        text = self._bounded(
            {
                **self._protected_text.protect(arguments or {}),
                **self._special,
                "messages": protected,
                "tools": self._protected_text.protect(list(tools)) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt,
            }
        )
        return self._cut_at_end_mark(text) if continue_final_message else text

    def _bounded(self, variables: dict[str, Any]) -> str:
        deadline = time.monotonic() + self._timeout

        def check_deadline() -> None:
            if time.monotonic() > deadline:
                raise BadRequestError("The chat template took too long on these messages.", param="messages")

        pieces: list[str] = []
        size = 0
        assert self._template is not None  # render() refused a model without one
        try:
            for piece in self._template.generate({**variables, _CHECK_DEADLINE: check_deadline}):
                pieces.append(piece)
                size += len(piece)
                if size > self._max_chars:
                    raise BadRequestError(
                        f"The chat template rendered more than {self._max_chars} characters.", param="messages"
                    )
                check_deadline()
        except BadRequestError:
            raise
        except _TemplateRaisedError as error:
            raise BadRequestError(f"The chat template refused the messages: {error}", param="messages") from error
        except Exception as error:  # a template is a program of someone else's: it may raise anything
            raise BadRequestError(
                f"The chat template failed on these messages: {type(error).__name__}: {str(error)[:500]}",
                param="messages",
            ) from error
        return "".join(pieces)

    def _cut_at_end_mark(self, text: str) -> str:
        position = text.rfind(self._end_mark)
        if position < 0:
            raise BadRequestError(
                "The chat template does not show the final message, so it cannot be continued.",
                param="continue_final_message",
            )
        # As transformers does: a template that trims messages would have trimmed this one's end, too.
        trims = not text.startswith(" ", position + len(self._end_mark))
        return text[:position].rstrip() if trims else text[:position]


def render_text(source: str, variables: dict[str, Any]) -> str:
    """Render a template of this package's own."""
    return _environment().from_string(source).render({**variables, _CHECK_DEADLINE: lambda: None})


class _BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Every turn of every loop looks at the clock: a loop that writes nothing gives nobody else the chance to."""

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        template = super()._parse(source, name, filename)
        for loop in list(template.find_all(jinja2.nodes.For)):
            check = jinja2.nodes.Call(jinja2.nodes.Name(_CHECK_DEADLINE, "load"), [], [], None, None)
            loop.body.insert(0, jinja2.nodes.ExprStmt(check).set_lineno(loop.lineno))
        return template


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}…{% endgeneration %}`` marks the assistant's part for training; here it only passes through."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it as a plain set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> _BoundedEnvironment:
    environment = _BoundedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _TemplateRaisedError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
