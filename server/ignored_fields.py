"""The one list of request fields that are accepted without effect, and of those that are refused by name.

``docs/api.md`` shows both lists; a test holds the page to them, and another walks the ``openai`` package's types to
prove that every field of theirs works, is here, or is refused.
"""

from __future__ import annotations

IGNORED_FIELDS: dict[str, str] = {
    "user": "names the end user for OpenAI's abuse monitoring; kept nowhere",
    "safety_identifier": "names the end user for OpenAI's abuse monitoring; kept nowhere",
    "metadata": "labels of OpenAI's stored completions; nothing is stored here",
    "store": "nothing is stored here",
    "service_tier": "there is one tier",
    "prompt_cache_key": "prefixes are matched by their tokens, no key is needed",
    "prompt_cache_options": "prefixes are matched by their tokens, no options are needed",
    "prompt_cache_retention": "the prefix cache keeps what fits, least recently used out first",
    "verbosity": "a hint that only OpenAI's own models know",
}
"""Field of a completions request, and why ignoring it is harmless."""

IGNORED_NESTED_FIELDS: dict[str, str] = {
    "stream_options.include_obfuscation": "events are not padded",
    "messages[].tool_calls[].index": "part of a streamed answer, sent back in the history",
    "messages[].annotations": "part of an earlier answer, sent back in the history",
    "messages[].parsed": "added by OpenAI's client: what it parsed of the content",
    "messages[].tool_calls[].function.parsed_arguments": "added by OpenAI's client: what it parsed of the arguments",
    "messages[].reasoning_details": "thinking in the form of another service",
    "messages[].content[].prompt_cache_breakpoint": "prefixes are matched by their tokens, no mark is needed",
    "messages[].cache_control": "prefixes are matched by their tokens, no mark is needed",
    "messages[].content[].cache_control": "prefixes are matched by their tokens, no mark is needed",
    "tools[].cache_control": "prefixes are matched by their tokens, no mark is needed",
}
"""The same, for fields inside others."""

REFUSED_FIELDS: dict[str, str] = {
    "audio": "only text is served.",
    "moderation": "there is no moderation model.",
    "web_search_options": "there is no web search.",
    "suffix": "insertion is not served; put the suffix into the prompt in the model's own format.",
    "use_beam_search": "beam search is not served.",
    "length_penalty": "beam search is not served.",
}
"""Field of a completions request that is a 400, and why."""

NEUTRAL_VALUES: dict[str, object] = {"suffix": "", "use_beam_search": False, "length_penalty": 1.0}
"""Values of refused fields that ask for nothing, and so are accepted."""

REFUSED_NESTED_FIELDS: dict[str, str] = {
    "messages[].prefix": "to go on in the last message set 'continue_final_message'.",
    "messages[].content[].document_url": "only text is served.",
    "messages[].content[].image": "only text is served.",
    "messages[].content[].video": "only text is served.",
    "response_format.value": 'give the schema as {"type": "json_schema", "json_schema": {"schema": ...}}.',
    "tools[].name": 'give the function as {"type": "function", "function": {"name": ...}}.',
    "tools[].parameters": 'give the function as {"type": "function", "function": {"name": ...}}.',
}
"""Field of other servers and interfaces inside a known one, and what to do instead."""

RENAMED_FIELDS: dict[str, str] = {
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "ebnf",
    "guided_decoding_backend": "grammar_backend",
    "grammar": "ebnf",
    "max_new_tokens": "max_tokens",
    "n_predict": "max_tokens",
}
"""Field of other servers or of their older versions, and the one that means it here."""


def as_table(fields: dict[str, str]) -> str:
    """One of the lists above as the table ``docs/api.md`` shows."""
    rows = [f"| `{name}` | {reason.rstrip('.')} |" for name, reason in fields.items()]
    return "\n".join(["| field | why |", "|---|---|", *rows])
