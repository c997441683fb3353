"""Deterministic English filler: sentences of common words, about one token a word in any English vocabulary."""

# Lists of words are easier to read and to extend as text.
# ruff: noqa: SIM905

from __future__ import annotations

import random

_DETERMINERS = "the a this that every another some one".split()
_ADJECTIVES = (
    "quiet green narrow honest golden heavy early distant gentle broken curious modern simple northern famous private "
    "warm bitter silver empty careful ancient sudden local polite sharp wooden busy hidden rapid"
).split()
_NOUNS = (
    "harbor ladder teacher orchard engine letter valley captain market blanket kitchen pilot bridge shadow painter "
    "museum lantern farmer signal basket sailor library compass village doctor meadow carpenter station singer bottle "
    "castle neighbor winter tunnel baker island journal mirror tower student bicycle gardener theater copper ticket"
).split()
_VERBS = (
    "watches carries repairs follows forgets paints visits answers measures borrows crosses opens studies protects "
    "describes finds leaves remembers sells delivers questions admires gathers lifts prepares"
).split()
_ADVERBS = "slowly today again nearby tonight carefully twice alone outside together sometimes early".split()

FIRST_NAMES = (
    "Amara Benito Celia Dmitri Elif Fumiko Gideon Hanna Idris Jelena Kofi Leila Marek Noor Otto Paloma".split()
)
LAST_NAMES = "Adler Bianchi Castro Demir Eriksen Fontaine Ghosh Hofmann Ito Jansen Kowalski Lopes Mbeki Nilsson".split()
CITIES = "Porto Bergen Kyoto Tunis Quito Krakow Turin Galway Hanoi Bremen Tartu Cusco Leeds Malmo".split()
PRODUCTS = "printer headset router keyboard monitor charger scanner webcam tablet speaker".split()
DISHES = "soup stew salad omelette pancakes curry noodles pie dumplings risotto".split()
INGREDIENTS = "rice onion carrot butter ginger lentils spinach mushrooms flour lemon tomato pepper garlic eggs".split()


def sentence(rng: random.Random) -> str:
    """One sentence of eight words."""
    words = [
        rng.choice(_DETERMINERS),
        rng.choice(_ADJECTIVES),
        rng.choice(_NOUNS),
        rng.choice(_VERBS),
        rng.choice(_DETERMINERS),
        rng.choice(_ADJECTIVES),
        rng.choice(_NOUNS),
        rng.choice(_ADVERBS),
    ]
    return " ".join(words).capitalize() + "."


def paragraph(rng: random.Random, num_words: int) -> str:
    """At least ``num_words`` words, in whole sentences."""
    sentences: list[str] = []
    count = 0
    while count < num_words:
        sentences.append(sentence(rng))
        count += len(sentences[-1].split())
    return " ".join(sentences)


def person(rng: random.Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def rare_name(rng: random.Random) -> str:
    """One of about five million names."""
    return f"{rng.choice(_NOUNS)}{rng.randrange(10**5):05d}"
