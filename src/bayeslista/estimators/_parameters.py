"""Checks of constructor parameters: each refuses by name, with the value and the fix."""

import math
from numbers import Integral, Real
from typing import Any

import numpy as np


def check_integer(name: str, value: Any, *, minimum: int) -> None:
    """Refuse, by name, a parameter that is not an integer of at least `minimum`.

    Parameters
    ----------
    name : str
        The parameter.
    value : object
        What the user gave.
    minimum : int
        The least value allowed.

    Examples
    --------
    >>> from bayeslista.estimators._parameters import check_integer
    >>> check_integer("n_layers", 0, minimum=1)
    Traceback (most recent call last):
    ValueError: n_layers must be an integer of at least 1, got 0; pass for example n_layers=1.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Integral) or value < minimum:
        raise ValueError(
            f"{name} must be an integer of at least {minimum}, got {value!r}; pass for example {name}={minimum}."
        )


def check_real(name: str, value: Any, *, minimum: float, below: float = math.inf, strict: bool = False) -> None:
    """Refuse, by name, a parameter that is not a finite number in its range.

    Parameters
    ----------
    name : str
        The parameter.
    value : object
        What the user gave.
    minimum : float
        The least value allowed, or with `strict` the greatest not allowed.
    below : float
        The value has to be less than this.
    strict : bool
        Whether `minimum` itself is refused.

    Examples
    --------
    >>> from bayeslista.estimators._parameters import check_real
    >>> check_real("shrinkage", -0.1, minimum=0)
    Traceback (most recent call last):
    ValueError: shrinkage must be a finite number of at least 0, got -0.1; pass for example shrinkage=0.1.
    """
    numeric = isinstance(value, Real) and not isinstance(value, (bool, np.bool_))
    # Comparisons with NaN are false, so it fails here as well.
    if not (numeric and (value > minimum if strict else value >= minimum) and value < below):
        interval = f"{'above' if strict else 'of at least'} {minimum}"
        ceiling = "" if below == math.inf else f" and below {below}"
        raise ValueError(
            f"{name} must be a finite number {interval}{ceiling}, got {value!r}; pass for example {name}=0.1."
        )


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Refuse, by name, a parameter that is none of its choices.

    Parameters
    ----------
    name : str
        The parameter.
    value : object
        What the user gave.
    choices : tuple of str
        What is allowed.

    Examples
    --------
    >>> from bayeslista.estimators._parameters import check_choice
    >>> check_choice("dtype", "float16", ("float32", "float64"))
    Traceback (most recent call last):
    ValueError: dtype must be one of 'float32', 'float64', got 'float16'; pass one of these.
    """
    if not isinstance(value, str) or value not in choices:
        allowed = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"{name} must be one of {allowed}, got {value!r}; pass one of these.")


def check_boolean(name: str, value: Any) -> None:
    """Refuse, by name, a parameter that is neither True nor False.

    Parameters
    ----------
    name : str
        The parameter.
    value : object
        What the user gave.

    Examples
    --------
    >>> from bayeslista.estimators._parameters import check_boolean
    >>> check_boolean("learn_shrinkage", "yes")
    Traceback (most recent call last):
    ValueError: learn_shrinkage must be True or False, got 'yes'; pass one of these.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name} must be True or False, got {value!r}; pass one of these.")


def check_verbose(value: Any) -> None:
    """Refuse a `verbose` that is neither a truth value nor a non-negative integer.

    Parameters
    ----------
    value : object
        What the user gave.

    Examples
    --------
    >>> from bayeslista.estimators._parameters import check_verbose
    >>> check_verbose(True)
    """
    if not isinstance(value, (bool, np.bool_)):
        check_integer("verbose", value, minimum=0)
