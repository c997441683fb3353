"""Three JSON Schemas of the kind applications send, each with prompts that ask for its form.

A schema is built by a function of a ``rename``: the identity gives the schema an application would send with every
request, a fresh suffix a schema of the same size that no server has compiled before.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.serve import prose

Rename = Callable[[str], str]
Schema = dict[str, Any]


def _closed_object(properties: dict[str, Schema]) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _ticket(rename: Rename) -> Schema:
    """Classification: short strings, enums, a bounded integer, a list of labels."""
    return _closed_object(
        {
            rename("subject"): {"type": "string", "maxLength": 60},
            rename("category"): {"enum": ["billing", "delivery", "defect", "question"]},
            rename("urgency"): {"type": "integer", "minimum": 1, "maximum": 5},
            rename("order_id"): {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
            rename("refund_wanted"): {"type": "boolean"},
            rename("labels"): {
                "type": "array",
                "items": {"type": "string", "maxLength": 16},
                "minItems": 1,
                "maxItems": 3,
            },
        }
    )


def _recipe(rename: Rename) -> Schema:
    """Extraction: an array of nested objects with numbers and a value that may be null."""
    ingredient = _closed_object(
        {
            rename("name"): {"type": "string", "maxLength": 24},
            rename("amount"): {"type": "number"},
            rename("unit"): {"enum": ["g", "ml", "piece", "spoon"]},
        }
    )
    return _closed_object(
        {
            rename("title"): {"type": "string", "maxLength": 48},
            rename("cook"): {"type": ["string", "null"], "maxLength": 32},
            rename("minutes"): {"type": "integer", "minimum": 1, "maximum": 600},
            rename("ingredients"): {"type": "array", "items": ingredient, "minItems": 2, "maxItems": 4},
        }
    )


def _action(rename: Rename) -> Schema:
    """Routing: one of several actions, each with its own arguments, through local references."""
    day = {"enum": ["monday", "tuesday", "wednesday", "thursday", "friday"]}
    book = _closed_object(
        {
            rename("action"): {"const": "book_room"},
            rename("city"): {"type": "string", "maxLength": 24},
            rename("day"): {"$ref": "#/$defs/day"},
            rename("seats"): {"type": "integer", "minimum": 1, "maximum": 40},
        }
    )
    invite = _closed_object(
        {
            rename("action"): {"const": "send_invite"},
            rename("guests"): {
                "type": "array",
                "items": {"type": "string", "maxLength": 32},
                "minItems": 1,
                "maxItems": 3,
            },
            rename("day"): {"$ref": "#/$defs/day"},
        }
    )
    return {
        "$defs": {"day": day, "book": book, "invite": invite},
        "anyOf": [{"$ref": "#/$defs/book"}, {"$ref": "#/$defs/invite"}],
    }


def _ticket_prompt(rng: random.Random) -> str:
    return (
        "Read this customer message and fill in a support ticket as JSON. Message: my "
        f"{rng.choice(prose.PRODUCTS)} from order {rng.choice('ABCDE')}{rng.choice('KLMNP')}-{rng.randint(1000, 9999)} "
        f"arrived {rng.randint(2, 20)} days late in {rng.choice(prose.CITIES)} and I want my money back. "
        f"{prose.paragraph(rng, 24)} Regards, {prose.person(rng)}"
    )


def _recipe_prompt(rng: random.Random) -> str:
    parts = rng.sample(prose.INGREDIENTS, 3)
    return (
        f"Write this recipe as JSON. {prose.person(rng)} makes {rng.choice(prose.DISHES)} in "
        f"{rng.randint(10, 120)} minutes from {rng.randint(50, 900)} g {parts[0]}, {rng.randint(1, 6)} pieces of "
        f"{parts[1]} and {rng.randint(1, 4)} spoons of {parts[2]}. {prose.paragraph(rng, 24)}"
    )


def _action_prompt(rng: random.Random) -> str:
    return (
        "Choose what the assistant should do, book_room or send_invite, and answer with its arguments as JSON. "
        f"Request: {prose.person(rng)} meets {rng.randint(2, 30)} people in {rng.choice(prose.CITIES)} on friday "
        f"and asks {prose.person(rng)} to come too. {prose.paragraph(rng, 24)}"
    )


@dataclass(frozen=True)
class Form:
    """A schema and prompts that ask for it."""

    name: str
    schema: Callable[[Rename], Schema]
    prompt: Callable[[random.Random], str]


FORMS = (
    Form("ticket", _ticket, _ticket_prompt),
    Form("recipe", _recipe, _recipe_prompt),
    Form("action", _action, _action_prompt),
)


def same_name(name: str) -> str:
    """The rename of a schema sent with every request."""
    return name


def fresh_names(rng: random.Random) -> Rename:
    """A rename that makes every property name of one schema new."""
    suffix = prose.rare_name(rng)
    return lambda name: f"{name}_{suffix}"
