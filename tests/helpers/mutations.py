"""Files gone wrong: what disks, networks and editors do to bytes, and what an attacker would."""

import copy
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

TAKEN = Path("/proc/self/statm")
MEMORY = 2**30  # bytes that reading a small file may take
SECONDS = 60  # after which reading it counts as hanging

HUGE_TEXT = (b"1000000000000", b"9" * 30, b"-1", b"1e999", b"nan", b"4294967295", b"0")


class HangingError(BaseException):
    """Reading does not end."""


def mutated(content: bytes, random: np.random.Generator) -> bytes:
    """Damage a file in one to three places."""
    for _ in range(random.integers(1, 4)):
        content = CHANGES[random.integers(len(CHANGES))](content or b"\0", random)
    return content


def flip_bits(content: bytes, random: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for place in random.integers(len(content), size=random.integers(1, 9)):
        changed[place] ^= 1 << int(random.integers(8))
    return bytes(changed)


def cut(content: bytes, random: np.random.Generator) -> bytes:
    return content[: random.integers(len(content))]


def insert(content: bytes, random: np.random.Generator) -> bytes:
    place = random.integers(len(content) + 1)
    return content[:place] + random.bytes(int(random.integers(1, 40))) + content[place:]


def repeat(content: bytes, random: np.random.Generator) -> bytes:
    begin, end = _range(content, random)
    return content[:end] + content[begin:end] + content[end:]


def remove(content: bytes, random: np.random.Generator) -> bytes:
    begin, end = _range(content, random)
    return content[:begin] + content[end:]


def overwrite_with_huge_number(content: bytes, random: np.random.Generator) -> bytes:
    place = int(random.integers(len(content)))
    size = int(random.choice([1, 2, 4, 8]))
    number = int(random.choice([0x7F, 0xFF]))
    return content[:place] + b"\xff" * (size - 1) + bytes([number]) + content[place + size :]


def write_huge_digits(content: bytes, random: np.random.Generator) -> bytes:
    """Replace a number that is spelled out, such as a shape or an offset, by a huge one."""
    digits = [i for i in range(min(len(content), 5000)) if content[i : i + 1].isdigit()]
    if not digits:
        return content
    begin = end = digits[random.integers(len(digits))]
    while content[end : end + 1].isdigit():
        end += 1
    return content[:begin] + HUGE_TEXT[random.integers(len(HUGE_TEXT))] + content[end:]


CHANGES = (flip_bits, cut, insert, repeat, remove, overwrite_with_huge_number, write_huge_digits)


OTHER_VALUES = (
    None,
    True,
    -1,
    0,
    10**20,
    1.5,
    "",
    "x",
    [],
    {},
    {"$": "tuple", "items": []},
    {"$": "dict", "items": {}},
    {"$": "float", "value": "nan"},
    {"$": "array", "array": "0"},
    {"$": "array", "array": "3"},
    {"$": "dtype", "name": "int8"},
    {"$": "lambda"},
)


def mutated_tree(tree: Any, random: np.random.Generator) -> Any:
    """Change a tree of JSON in one or two places: drop, rename, repeat, or put another value there."""
    changed = copy.deepcopy(tree)
    for _ in range(random.integers(1, 3)):
        places = list(_places(changed))
        parent, name = places[random.integers(len(places))]
        change = random.integers(4)
        if change == 0:
            del parent[name]
        elif change == 1:
            parent[name] = copy.deepcopy(OTHER_VALUES[random.integers(len(OTHER_VALUES))])
        elif change == 2:
            other, there = places[random.integers(len(places))]
            parent[name] = copy.deepcopy(other[there])
        elif isinstance(parent, dict):
            parent[f"{name}x"] = parent.pop(name)
        else:
            parent.append(copy.deepcopy(parent[name]))
    return changed


def _places(node: Any) -> Iterator[tuple[Any, Any]]:
    names = node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    for name in names:
        yield node, name
        yield from _places(node[name])


def _range(content: bytes, random: np.random.Generator) -> tuple[int, int]:
    begin, end = np.sort(random.integers(len(content) + 1, size=2))
    return int(begin), int(min(end, begin + 4000))


@contextmanager
def bounded() -> Iterator[None]:
    """Let no more than `MEMORY` be taken (where /proc tells how much is), and nothing last longer than `SECONDS`."""

    def stop(*_: object) -> None:
        raise HangingError

    limits = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    if TAKEN.exists():
        taken = int(TAKEN.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, limits[1]))
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, limits)
