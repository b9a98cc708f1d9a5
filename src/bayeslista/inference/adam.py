r"""Adam's direction, for parameters of any shape.

From gradients :math:`g` come running means :math:`m \leftarrow 0.9 m + 0.1 g` and
:math:`v \leftarrow 0.999 v + 0.001 g^2`; both are divided by what they would be if every gradient had been one, and the
direction is :math:`m / (\sqrt{v} + 10^{-8})`.
"""

from functools import reduce
from operator import add
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

_FIRST_DECAY, _SECOND_DECAY = 0.9, 0.999
_EPSILON = 1e-8


class Moments(NamedTuple):
    """How many gradients there were, and running means of them and of their squares, each like the parameters."""

    n_steps: Int[Array, ""]
    first: Any
    second: Any


def no_moments(parameters: Any) -> Moments:
    """Moments before the first gradient.

    Parameters
    ----------
    parameters : pytree of arrays
        What is to be learned.

    Returns
    -------
    Moments
        Zeros, on the host.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.adam import no_moments
    >>> no_moments({"slope": np.ones(2)}).first
    {'slope': array([0., 0.])}
    """
    first, second = (jax.tree.map(lambda part: np.zeros(np.shape(part), part.dtype), parameters) for _ in range(2))
    n_steps: Any = np.zeros((), np.int32)
    return Moments(n_steps, first, second)


def direction(gradient: Any, moments: Moments) -> tuple[Any, Moments]:
    """The direction to descend against, to be multiplied by a rate.

    Parameters
    ----------
    gradient : pytree of arrays
        Like the parameters.
    moments : Moments
        Before this gradient.

    Returns
    -------
    direction : pytree of arrays
        Like the parameters, about one in size.
    moments : Moments
        After it.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.adam import direction, no_moments
    >>> gradient = np.array([3.0, -0.5], np.float32)
    >>> direction(gradient, no_moments(gradient))[0].round(3).tolist()
    [1.0, -1.0]
    """
    n_steps = moments.n_steps + 1
    first = jax.tree.map(lambda g, m: (1 - _FIRST_DECAY) * g + _FIRST_DECAY * m, gradient, moments.first)
    second = jax.tree.map(lambda g, v: (1 - _SECOND_DECAY) * (g * g) + _SECOND_DECAY * v, gradient, moments.second)
    known, known_square = 1 - jnp.power(_FIRST_DECAY, n_steps), 1 - jnp.power(_SECOND_DECAY, n_steps)

    def towards(m: Array, v: Array) -> Array:
        return m / known.astype(m.dtype) / (jnp.sqrt(v / known_square.astype(v.dtype)) + _EPSILON)

    return jax.tree.map(towards, first, second), Moments(n_steps, first, second)


def squared_norm(gradient: Any) -> Float[Array, ""]:
    """Sum of the squares of all entries, which is not finite if one of them is not.

    Parameters
    ----------
    gradient : pytree of arrays
        Of any shapes.

    Returns
    -------
    array
        The sum.

    Examples
    --------
    >>> import numpy as np
    >>> from bayeslista.inference.adam import squared_norm
    >>> float(squared_norm((np.ones(2), np.full(1, 3.0))))
    11.0
    """
    return reduce(add, (jnp.sum(part * part) for part in jax.tree.leaves(gradient)))
