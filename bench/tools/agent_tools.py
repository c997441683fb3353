"""The tools of an agent with many services: 128 functions, about 120 KB, the same on every run.

Bounded strings of 128 to 2,083 characters, lists of choices, nested objects, arrays and formats. A service has the
fields of one thing; each of its functions takes some of them.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_PEOPLE = {"type": "array", "items": {"type": "string", "format": "email", "maxLength": 254}, "maxItems": 50}
_LABELS = {"type": "array", "items": {"type": "string", "minLength": 1, "maxLength": 64}, "maxItems": 20}


def _text(description: str, most: int = 500, least: int = 0) -> Schema:
    schema: Schema = {"type": "string", "description": description, "maxLength": most}
    return {**schema, "minLength": least} if least else schema


def _choice(description: str, *options: str) -> Schema:
    return {"type": "string", "description": description, "enum": list(options)}


def _count(description: str, low: int, high: int) -> Schema:
    return {"type": "integer", "description": description, "minimum": low, "maximum": high}


def _link(description: str) -> Schema:
    return {"type": "string", "description": description, "format": "uri", "minLength": 1, "maxLength": 2083}


def _moment(description: str) -> Schema:
    return {"type": "string", "description": description, "format": "date-time"}


def _object(description: str, required: list[str], /, **properties: Schema) -> Schema:
    return {
        "type": "object",
        "description": description,
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


_MONEY = _object(
    "An amount in one currency.",
    ["amount", "currency"],
    amount={"type": "number", "minimum": 0, "multipleOf": 0.01},
    currency=_choice("ISO 4217 code of the currency.", "EUR", "USD", "GBP", "JPY", "NOK", "CHF"),
)
_PLACE = _object(
    "A postal address as the carrier prints it.",
    ["street", "city", "country"],
    street=_text("Street and house number.", 200, 1),
    city=_text("Name of the town.", 128, 1),
    postal_code={"type": "string", "pattern": "^[0-9A-Z -]{3,10}$"},
    country={"type": "string", "pattern": "^[A-Z]{2}$", "description": "ISO 3166 code of the country."},
)

_THINGS: dict[str, tuple[str, dict[str, Schema]]] = {
    "ticket": ("a request of a customer in the help desk", {
        "subject": _text("One line that says what is wrong.", 200, 1),
        "body": _text("The whole report in the customer's own words.", 2000),
        "priority": _choice("How soon somebody must answer.", "low", "normal", "high", "urgent"),
        "watchers": _PEOPLE,
        "due": _moment("When the answer was promised."),
    }),
    "issue": ("an issue in the tracker of a repository", {
        "title": _text("Title of the issue, without its number.", 256, 1),
        "description": _text("Steps to reproduce, what was expected and what came.", 2048),
        "severity": _choice("What it does to users.", "cosmetic", "minor", "major", "critical"),
        "labels": _LABELS,
        "reference": _link("Page that shows the fault."),
    }),
    "event": ("an entry of a shared calendar", {
        "summary": _text("What the entry is called in the calendar.", 128, 1),
        "start": _moment("When it begins, with the offset of its time zone."),
        "end": _moment("When it ends, with the offset of its time zone."),
        "attendees": _PEOPLE,
        "repeats": _choice("How often it comes again.", "never", "daily", "weekly", "monthly", "yearly"),
    }),
    "mail": ("a message in somebody's mailbox", {
        "to": _PEOPLE,
        "subject": _text("Subject line of the message.", 255, 1),
        "text": _text("Plain text of the message, with its greeting.", 2000),
        "importance": _choice("How mail programs mark it.", "low", "normal", "high"),
        "send_at": _moment("When to send it, if not at once."),
    }),
    "document": ("a page of the team's wiki", {
        "title": _text("Title of the page.", 160, 1),
        "content": _text("The page in Markdown.", 2048),
        "space": {"type": "string", "pattern": "^[A-Z][A-Z0-9]{1,9}$", "description": "Key of the space it is in."},
        "labels": _LABELS,
        "source": _link("Where the text was taken from."),
    }),
    "order": ("an order of the web shop", {
        "customer": {"type": "string", "format": "email", "maxLength": 254},
        "total": _MONEY,
        "ship_to": _PLACE,
        "note": _text("What the customer wrote to the warehouse.", 500),
        "channel": _choice("Where it was placed.", "web", "phone", "shop", "partner"),
    }),
    "invoice": ("an invoice of the bookkeeping", {
        "number": {"type": "string", "pattern": "^INV-[0-9]{6}$", "description": "Number printed on the invoice."},
        "amount": _MONEY,
        "due": {"type": "string", "format": "date", "description": "Last day to pay."},
        "memo": _text("Text that is printed below the amounts.", 300),
        "status": _choice("What became of it.", "draft", "open", "paid", "void", "uncollectible"),
    }),
    "shipment": ("a parcel on its way", {
        "carrier": _choice("Who brings it.", "post", "courier", "freight", "pickup"),
        "destination": _PLACE,
        "weight": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000, "description": "Kilograms."},
        "instructions": _text("What the driver should know about the door.", 250),
        "tracking": _link("Page on which the parcel can be followed."),
    }),
    "contact": ("a person in the address book", {
        "name": _text("Full name, family name last.", 128, 1),
        "email": {"type": "string", "format": "email", "maxLength": 254},
        "address": _PLACE,
        "notes": _text("What colleagues should know before they call.", 1000),
        "stage": _choice("How far the talks are.", "lead", "prospect", "customer", "former"),
    }),
    "deployment": ("a release that runs in a cluster", {
        "service": {"type": "string", "format": "hostname", "maxLength": 253},
        "image": _text("Image with its tag or digest.", 512, 1),
        "environment": _choice("Which cluster.", "development", "staging", "production"),
        "replicas": _count("How many copies run.", 0, 100),
        "health": _link("Address that answers while it is well."),
    }),
    "alert": ("a rule that wakes somebody", {
        "name": _text("Name under which it is reported.", 128, 1),
        "query": _text("Expression that is evaluated every minute.", 1024, 1),
        "level": _choice("Who is woken.", "info", "warning", "page"),
        "recipients": _PEOPLE,
        "runbook": _link("What to do when it fires."),
    }),
    "query": ("a saved query of the data warehouse", {
        "name": _text("Name in the list of queries.", 128, 1),
        "sql": _text("The statement, without its last semicolon.", 2048, 1),
        "warehouse": _choice("How large a machine runs it.", "small", "medium", "large"),
        "limit": _count("Most rows that come back.", 1, 10000),
        "labels": _LABELS,
    }),
    "booking": ("a room or a seat that is taken", {
        "room": {"type": "string", "pattern": "^[A-Z]-[0-9]{3}$", "description": "Floor and number of the room."},
        "from": _moment("When it is taken."),
        "until": _moment("When it is free again."),
        "guests": _PEOPLE,
        "equipment": _text("What should stand in the room.", 400),
    }),
    "candidate": ("somebody who applied for a position", {
        "name": _text("Full name as in the application.", 128, 1),
        "position": _text("Title of the position.", 200, 1),
        "resume": _link("Where the documents are."),
        "stage": _choice("How far they came.", "applied", "screen", "interview", "offer", "hired", "rejected"),
        "feedback": _text("What the last interviewer wrote.", 1500),
    }),
    "campaign": ("a series of messages to customers", {
        "name": _text("Name that nobody outside sees.", 150, 1),
        "audience": _text("Who gets it, as a filter of the customer list.", 700),
        "budget": _MONEY,
        "goal": _choice("What it should bring.", "awareness", "signup", "purchase", "renewal"),
        "landing": _link("Page that the messages lead to."),
    }),
    "file": ("a file in the shared storage", {
        "path": _text("Folders and name, with slashes between them.", 1024, 1),
        "content": _text("Text of the file.", 2000),
        "encoding": _choice("How the bytes are to be read.", "utf-8", "utf-16", "latin-1"),
        "expires": _moment("When it may be deleted."),
        "origin": _link("Where it was downloaded from."),
    }),
}  # fmt: skip

_ID = {"type": "string", "format": "uuid", "description": "Identifier that a search or a creation gave."}
_PAGE = _object(
    "Which part of a long list is wanted.",
    [],
    size=_count("Most entries of one page.", 1, 200),
    after=_text("Where the last page ended, as that page said it.", 256),
)


def agent_tools(count: int = 128) -> list[dict[str, Any]]:
    """The first ``count`` function tools, as a request has them."""
    tools = []
    for name, (meaning, fields) in _THINGS.items():
        first, *others = fields
        patch = _object(f"What changes about {meaning}; what is left out stays as it is.", [], **fields)
        window = _object("Only what was changed in this time.", ["since"], since=_moment("Earliest change."))
        order = _choice("How the list is sorted.", "created", "changed", *list(fields)[:2])
        reason = _text("Why, for those who read the log later.", 300, 1)
        functions: dict[str, tuple[str, list[str], dict[str, Schema]]] = {
            "create": (f"Create {meaning}.", [first, others[0]], fields),
            "update": (f"Change some fields of {meaning}.", ["id", "changes"], {"id": _ID, "changes": patch}),
            "search": (f"Find {meaning} by its text.", ["query"],
                       {"query": _text("Words that must occur.", 500, 1), "window": window, "sort": order,
                        "page": _PAGE}),
            "get": (f"Read {meaning}.", ["id"],
                    {"id": _ID, "fields": {"type": "array", "items": _choice("A field.", *fields), "maxItems": 5}}),
            "delete": (f"Delete {meaning} for good.", ["id", "reason"],
                       {"id": _ID, "reason": reason, "notify": {"type": "boolean"}}),
            "comment": (f"Write a remark below {meaning}.", ["id", "text"],
                        {"id": _ID, "text": _text("The remark in Markdown.", 2000, 1), "mentions": _PEOPLE,
                         "attachment": _link("A page or picture that belongs to it.")}),
            "assign": (f"Make somebody responsible for {meaning}.", ["id", "assignee"],
                       {"id": _ID, "assignee": {"type": "string", "format": "email", "maxLength": 254},
                        "role": _choice("What they do.", "owner", "reviewer", "helper"), "reason": reason}),
            "import": (f"Take in many at once, each of them {meaning}.", ["items"],
                       {"items": {"type": "array", "items": _object(f"One of them: {meaning}.", [first], **fields),
                                  "minItems": 1, "maxItems": 100},
                        "on_conflict": _choice("What to do with one that exists.", "skip", "replace", "fail")}),
        }  # fmt: skip
        for verb, (description, required, properties) in functions.items():
            parameters = _object(description, required, **properties)
            function = {"name": f"{verb}_{name}", "description": description, "parameters": parameters}
            tools.append({"type": "function", "function": function})
    return tools[:count]
