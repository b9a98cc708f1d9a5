"""Whether fields are of the kind that a record promises."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
from jaxtyping import Float
from numpy.typing import NDArray

from bayeslista._fields import check_fields


class Part(NamedTuple):
    size: float


class Whole(NamedTuple):
    count: int = 0
    array: Float[np.ndarray, " D"] = np.zeros(3)
    other: NDArray[np.float64] = np.zeros(3)
    part: Part | None = None
    parts: list[Part] = []  # noqa: RUF012
    table: dict[str, float] = {}  # noqa: RUF012
    pair: tuple[int, Any] = (1, "x")
    choice: Literal["one", "two"] = "one"
    fine: bool = True
    anything: Any = None


GOOD = {
    "count": [3, 2.5, np.int64(3), np.array(3)],
    "array": [np.zeros((2, 2)), 1.0, np.float32(1.0)],
    "other": [np.zeros(2)],
    "part": [Part(1.0), None],
    "parts": [[], [Part(1.0)]],
    "table": [{"a": 1.0}],
    "pair": [(1, None)],
    "choice": ["two"],
    "fine": [False],
    "anything": ["x", None, Part(1.0)],
    "unknown": ["x"],
}
BAD = {
    "count": ["3", None, np.zeros(2), Part(1.0)],
    "array": ["x", None, [1.0]],
    "other": [None, {}],
    "part": [1.0, "x", (1.0,)],
    "parts": [None, [1.0], (Part(1.0),)],
    "table": [{"a": "x"}, [1.0]],
    "pair": [(1,), ("x", 1), [1, 2]],
    "choice": ["three", 1, np.zeros(2)],
    "fine": [1, "True", None],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_what_is_promised_passes(name, value):
    check_fields(Whole, {name: value})


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_another_kind_is_refused_by_name(name, value):
    with pytest.raises(TypeError, match=f"Whole.{name} cannot be a {type(value).__name__}"):
        check_fields(Whole, {name: value})


def test_a_dataclass_has_to_have_what_it_cannot_be_made_without():
    @dataclass
    class Learner:
        units: float
        steps: int = 3
        history: list[float] = field(default_factory=list)
        learned: float = field(init=False)

    check_fields(Learner, {"units": 1.0})
    with pytest.raises(TypeError, match=r"Learner\.units is missing"):
        check_fields(Learner, {"steps": 4})
