r"""The network anchored at the design matrix: moments through its layers, and the gradient of its expected error.

With the design matrix X at hand, :math:`S = I - W X + R`: every pair (W, S) is reachable, and ``R`` is what S departs
from the relation that proximal gradient steps obey. W (``encoder``) and R (``residual``) have independent Gaussian
entries. For a layer that receives mean ``e`` and variance ``s``, with :math:`u = y - X e`,

.. math::
    c_m = M_W y + M_S e, \qquad c_v = B s + V_R e^2 + V_W u^2, \qquad B = M_S^2 + V_R + V_W X^2,

squares of matrices and vectors taken elementwise. Backwards, with :math:`g_m, g_v` the derivatives in
:math:`c_m, c_v` and :math:`g_u = 2 u \circ V_W^T g_v`:

.. math::
    g_s = B^T g_v, \quad g_e = M_S^T g_m - X^T g_u + 2 e \circ V_R^T g_v .

So a layer is three products of matrices either way, with :math:`M_S`, with :math:`X` and with :math:`[B, V_R, V_W]`;
the derivatives in the weights of all layers together are two more. Where every variance is the product of one number
for its row and one for its column (:class:`RowColumn`), the third product is one with :math:`B` alone. Everything is
batched over the rows of the observations.
"""

from typing import Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bayeslista.network import largest_moment
from bayeslista.quick_moments import (
    Gaussian,
    Slopes,
    back_through,
    by_threshold,
    quick_moments,
    quick_moments_and_slopes,
)


class RowColumn(NamedTuple):
    """Independent Gaussians, one for every entry of a matrix, whose variances have a factor a row and one a column."""

    mean: Float[Array, "m n"]
    rows: Float[Array, " m"]
    columns: Float[Array, " n"]

    @property
    def var(self) -> Float[Array, "m n"]:
        """The variance of every entry."""
        return self.rows[:, None] * self.columns


_Kind = TypeVar("_Kind", Gaussian, RowColumn)


class AnchoredWeights(NamedTuple, Generic[_Kind]):
    """The belief about W and R, both of one kind."""

    encoder: _Kind
    residual: _Kind


class Propagated(NamedTuple):
    """Means and variances before and after the last threshold, each of shape (n, D)."""

    entering: Gaussian
    output: Gaussian


class AnchoredGradient(NamedTuple, Generic[_Kind]):
    """Derivatives in the weights' means and variances, or their factors, and in the threshold of every layer."""

    weights: AnchoredWeights[_Kind]
    shrinkage: Float[Array, " L"]


class LayerMatrices(NamedTuple):
    """What all layers share, made once from the weights by :func:`layer_matrices`.

    Attributes
    ----------
    encoder : array of shape (D, K)
        M_W.
    recurrent : array of shape (D, D)
        M_S.
    design : array of shape (K, D)
        X, in the floating type that variances are carried in.
    spread : tuple of arrays
        What makes variances, in the same type.
    """

    encoder: Float[Array, "D K"]
    recurrent: Float[Array, "D D"]
    design: Float[Array, "K D"]
    spread: "_Elementwise | _ByRowAndColumn"


class _Powers(NamedTuple):
    """What variances are made of: s, e² and u²."""

    var: Array
    square: Array
    misfit_square: Array


class _Passed(NamedTuple):
    """What came out of a threshold, and the misfit it left, kept for the backward sweep."""

    mean: Array
    var: Array
    misfit: Array
    slopes: Slopes

    @property
    def powers(self) -> _Powers:
        return _Powers(self.var, self.mean * self.mean, self.misfit * self.misfit)


class _Elementwise(NamedTuple):
    """B, V_R and V_W side by side."""

    matrix: Float[Array, "D 2*D+K"]

    @classmethod
    def of(cls, weights: AnchoredWeights[Gaussian], recurrent: Array, design_matrix: Array) -> Self:
        encoder, residual = weights
        of_var = recurrent * recurrent + residual.var + encoder.var @ (design_matrix * design_matrix)
        return cls(jnp.concatenate([of_var, residual.var, encoder.var], axis=1))

    def first(self, observed_square: Array) -> Array:
        """Variances that observations alone bring."""
        return observed_square @ self.matrix[:, -observed_square.shape[1] :].T

    def variance(self, powers: _Powers) -> Array:
        return jnp.concatenate(powers, axis=1) @ self.matrix.T

    def back(self, by_var: Array) -> _Powers:
        """Derivatives in the powers."""
        return _Powers(*self._parts(by_var @ self.matrix))

    def gradient(
        self, by_var: Array, powers: _Powers, first: Array, observed_square: Array, design_square: Array
    ) -> tuple[Array, tuple[Array], tuple[Array]]:
        """Derivatives in M_S² and in the variances of W and of R, from those in the variances of all layers."""
        by_of_var, by_residual, by_encoder = self._parts(by_var.T @ jnp.concatenate(powers, axis=1))
        by_encoder = by_encoder + first.T @ observed_square + by_of_var @ design_square.T
        return by_of_var, (by_encoder,), (by_residual + by_of_var,)

    def _parts(self, whole: Array) -> list[Array]:
        n_components = len(self.matrix)
        return jnp.split(whole, [n_components, 2 * n_components], axis=1)


class _ByRowAndColumn(NamedTuple):
    """B, and the factors of V_W and V_R."""

    of_var: Float[Array, "D D"]
    encoder_rows: Float[Array, " D"]
    encoder_columns: Float[Array, " K"]
    residual_rows: Float[Array, " D"]
    residual_columns: Float[Array, " D"]

    @classmethod
    def of(cls, weights: AnchoredWeights[RowColumn], recurrent: Array, design_matrix: Array) -> Self:
        (_, p, q), (_, r, t) = weights
        of_var = recurrent * recurrent + r[:, None] * t + p[:, None] * (q @ (design_matrix * design_matrix))
        return cls(of_var, p, q, r, t)

    def first(self, observed_square: Array) -> Array:
        """Variances that observations alone bring."""
        return jnp.outer(observed_square @ self.encoder_columns, self.encoder_rows)

    def variance(self, powers: _Powers) -> Array:
        of_encoder, of_residual = powers.misfit_square @ self.encoder_columns, powers.square @ self.residual_columns
        return (
            powers.var @ self.of_var.T
            + of_encoder[:, None] * self.encoder_rows
            + of_residual[:, None] * self.residual_rows
        )

    def back(self, by_var: Array) -> _Powers:
        """Derivatives in the powers."""
        by_encoder, by_residual = (by_var @ self.encoder_rows)[:, None], (by_var @ self.residual_rows)[:, None]
        return _Powers(by_var @ self.of_var, by_residual * self.residual_columns, by_encoder * self.encoder_columns)

    def gradient(
        self, by_var: Array, powers: _Powers, first: Array, observed_square: Array, design_square: Array
    ) -> tuple[Array, tuple[Array, Array], tuple[Array, Array]]:
        """Derivatives in M_S² and in the factors of W and of R, from those in the variances of all layers."""
        squares = powers.var + powers.square
        of_encoder = powers.var @ (self.encoder_columns @ design_square) + powers.misfit_square @ self.encoder_columns
        by_encoder, by_residual = by_var @ self.encoder_rows, by_var @ self.residual_rows
        encoder_rows = of_encoder @ by_var + (observed_square @ self.encoder_columns) @ first
        encoder_columns = (
            by_encoder @ powers.misfit_square
            + design_square @ (by_encoder @ powers.var)
            + (first @ self.encoder_rows) @ observed_square
        )
        residual = (squares @ self.residual_columns) @ by_var, by_residual @ squares
        return by_var.T @ powers.var, (encoder_rows, encoder_columns), residual


def recurrent_mean(weights: AnchoredWeights[_Kind], design_matrix: Float[Array, "K D"]) -> Float[Array, "D D"]:
    """Mean of S.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.

    Returns
    -------
    array of shape (D, D)
        :math:`I - M_W X + M_R`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, recurrent_mean
    >>> from bayeslista.network import Gaussian
    >>> weights = AnchoredWeights(Gaussian(0.5 * jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> recurrent_mean(weights, jnp.eye(2)).tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    identity = np.eye(design_matrix.shape[1], dtype=design_matrix.dtype)
    return weights.residual.mean - weights.encoder.mean @ design_matrix + identity


def layer_matrices(
    weights: AnchoredWeights[_Kind], design_matrix: Float[Array, "K D"], variance_dtype: jnp.dtype | None = None
) -> LayerMatrices:
    """Make what all layers share.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.
    variance_dtype : dtype, optional
        The floating type that layers carry variances in; that of the weights, if not given.

    Returns
    -------
    LayerMatrices
        For :func:`propagate_layers`.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, layer_matrices
    >>> from bayeslista.quick_moments import Gaussian
    >>> weights = AnchoredWeights(Gaussian(0.5 * jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> layer_matrices(weights, jnp.eye(2)).recurrent.tolist()
    [[0.5, 0.0], [0.0, 0.5]]
    """
    recurrent = recurrent_mean(weights, design_matrix)
    kind = _Elementwise if isinstance(weights.encoder, Gaussian) else _ByRowAndColumn
    spread, dtype = kind.of(weights, recurrent, design_matrix), variance_dtype or recurrent.dtype
    largest = float(np.finfo(dtype).max)
    spread, design = jax.tree.map(lambda part: part.clip(-largest, largest).astype(dtype), (spread, design_matrix))
    return LayerMatrices(weights.encoder.mean, recurrent, design, spread)


def _first(matrices: LayerMatrices, observations: Array) -> tuple[Array, Array, Gaussian]:
    """What observations bring to every layer, they themselves as variances see them, and what enters the first."""
    drive = observations @ matrices.encoder.T
    seen = reduced(observations, matrices.design.dtype)
    return drive, seen, _held(drive, matrices.spread.first(seen * seen))


def _next(matrices: LayerMatrices, drive: Array, seen: Array, mean: Array, var: Array) -> tuple[Gaussian, Array]:
    """What enters the next threshold, with the misfit that is left."""
    small = reduced(mean, var.dtype)
    if small.dtype == matrices.recurrent.dtype:
        # One product of both takes less than two: this does not depend on the layer, and is made before the first.
        both = mean @ jnp.concatenate([matrices.recurrent, matrices.design]).T
        recurrent, observed = both[:, : len(matrices.recurrent)], both[:, len(matrices.recurrent) :]
    else:
        recurrent, observed = mean @ matrices.recurrent.T, small @ matrices.design.T
    misfit = seen - observed
    powers = _Powers(var, small * small, misfit * misfit)
    return _held(drive + recurrent, matrices.spread.variance(powers)), misfit


def reduced(values: Float[Array, "..."], dtype: np.dtype) -> Float[Array, "..."]:
    """Means in the floating type of variances, none larger than can be squared in it.

    Parameters
    ----------
    values : array
        Means.
    dtype : dtype
        That of variances.

    Returns
    -------
    array
        The same, as far as the type has room for it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import reduced
    >>> reduced(jnp.array([1.5]), jnp.dtype("float32")).tolist()
    [1.5]
    """
    if values.dtype == dtype:
        return values
    largest = largest_moment(jnp.zeros((), dtype))
    return jnp.clip(values, -largest, largest).astype(dtype)


def _held(mean: Array, var: Array) -> Gaussian:
    """Where numbers outgrow what can be squared in this precision, they stay there: no infinity, no NaN."""
    largest = largest_moment(mean)
    return Gaussian(jnp.clip(mean, -largest, largest), jnp.minimum(var, largest_moment(var)))


@jax.jit
def propagate_layers(
    matrices: LayerMatrices, observations: Float[Array, "n K"], shrinkage: Float[Array, " L"]
) -> Propagated:
    """Mean and variance before and after the last threshold, by matrices that were made before.

    Parameters
    ----------
    matrices : LayerMatrices
        What all layers share.
    observations : array of shape (n, K)
        One observation a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.

    Returns
    -------
    Propagated
        What enters the last threshold, and what comes out of it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, layer_matrices, propagate_layers
    >>> from bayeslista.quick_moments import Gaussian
    >>> weights = AnchoredWeights(Gaussian(0.5 * jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> matrices = layer_matrices(weights, jnp.eye(2))
    >>> propagate_layers(matrices, jnp.array([[2.0, 4.0]]), jnp.zeros(3)).entering.mean.tolist()
    [[1.75, 3.5]]
    """
    drive, seen, first = _first(matrices, observations)

    def layer(entering: Gaussian, threshold: Array) -> tuple[Gaussian, None]:
        output = quick_moments(*entering, threshold)
        (mean, var), _ = _next(matrices, drive, seen, *output)
        # A one that is known only when all have read the old means, which are copied otherwise before they change.
        one = jnp.where(jnp.isnan(jnp.sum(output.var[:1, :1])), jnp.nan, 1).astype(mean.dtype)
        return Gaussian(one * mean, var), None

    last, _ = jax.lax.scan(layer, first, shrinkage[:-1])
    return Propagated(last, quick_moments(*last, shrinkage[-1]))


@jax.jit
def propagate_anchored(
    weights: AnchoredWeights[_Kind],
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    shrinkage: Float[Array, " L"],
) -> Propagated:
    """Mean and variance before and after the last layer's threshold, for a batch of observations.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.
    observations : array of shape (n, K)
        One observation a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.

    Returns
    -------
    Propagated
        What enters the last threshold, and what comes out of it.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, propagate_anchored
    >>> from bayeslista.network import Gaussian
    >>> weights = AnchoredWeights(Gaussian(0.5 * jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> propagate_anchored(weights, jnp.eye(2), jnp.array([[2.0, 4.0]]), jnp.zeros(3)).entering.mean.tolist()
    [[1.75, 3.5]]
    """
    return propagate_layers(layer_matrices(weights, design_matrix), observations, shrinkage)


def expected_error_and_gradient(
    weights: AnchoredWeights[_Kind],
    design_matrix: Float[Array, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    shrinkage: Float[Array, " L"],
    included: Float[Array, " n"],
) -> tuple[Float[Array, ""], Float[Array, "n D"], AnchoredGradient[_Kind]]:
    r"""Expected squared error of the output, summed over pairs and coefficients, and its gradient.

    Parameters
    ----------
    weights : AnchoredWeights
        Belief about W and R.
    design_matrix : array of shape (K, D)
        X.
    observations, codes : array of shape (n, K) and (n, D)
        Pairs, one a row.
    shrinkage : array of shape (L,)
        The threshold of each layer.
    included : array of shape (n,)
        The weight of each pair; 0 leaves it out.

    Returns
    -------
    error : array
        :math:`\sum (\beta - e)^2 + s`.
    mean : array of shape (n, D)
        The output's mean e.
    gradient : AnchoredGradient
        Its derivatives.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from bayeslista.anchored_network import AnchoredWeights, expected_error_and_gradient
    >>> from bayeslista.network import Gaussian
    >>> weights = AnchoredWeights(Gaussian(jnp.eye(2), jnp.zeros((2, 2))), Gaussian(*jnp.zeros((2, 2, 2))))
    >>> pair = jnp.array([[1.0, 2.0]]), jnp.array([[1.0, 0.0]])
    >>> error, _, gradient = expected_error_and_gradient(weights, jnp.eye(2), *pair, jnp.zeros(1), jnp.ones(1))
    >>> float(error), gradient.weights.encoder.mean.tolist()
    (4.0, [[0.0, 0.0], [4.0, 8.0]])
    """
    matrices = layer_matrices(weights, design_matrix)
    drive, seen, first = _first(matrices, observations)

    def layer(entering: Gaussian, threshold: Array) -> tuple[Gaussian, _Passed]:
        output, slopes = quick_moments_and_slopes(*entering, threshold)
        following, misfit = _next(matrices, drive, seen, *output)
        return following, _Passed(*output, misfit, slopes)

    last, passed = jax.lax.scan(layer, first, shrinkage[:-1])
    (mean, var), slopes = quick_moments_and_slopes(*last, shrinkage[-1])
    weight = included[:, None]
    by_output = 2 * weight * (mean - codes), jnp.broadcast_to(weight, var.shape)

    def back(carry: tuple[Array, Array], before: _Passed) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        by_mean, by_var = carry
        by_s, by_square, by_misfit_square = matrices.spread.back(by_var)
        by_misfit = 2 * before.misfit * by_misfit_square
        by_e = by_mean @ matrices.recurrent - by_misfit @ matrices.design + 2 * before.mean * by_square
        by_shrinkage = jnp.sum(by_threshold(before.slopes, before.mean, by_e, by_s))
        return back_through(before.slopes, before.mean, by_e, by_s), (by_mean, by_var, by_shrinkage)

    start = back_through(slopes, mean, *by_output)
    (first_mean, first_var), (by_means, by_vars, by_shrinkage) = jax.lax.scan(back, start, passed, reverse=True)
    # Sums of outer products over layers and pairs: one product of matrices, not one a layer.
    rows, by_mean_rows, by_var_rows = jax.tree.map(
        lambda part: part.reshape(-1, part.shape[-1]), (passed, by_means, by_vars)
    )
    squares = observations * observations, design_matrix * design_matrix
    by_square, by_encoder, by_residual = matrices.spread.gradient(by_var_rows, rows.powers, first_var, *squares)
    by_recurrent = by_mean_rows.T @ rows.mean + 2 * matrices.recurrent * by_square
    by_drive = first_mean + jnp.sum(by_means, axis=0)
    kind = type(weights.encoder)
    gradient = AnchoredWeights(
        kind(by_drive.T @ observations - by_recurrent @ design_matrix.T, *by_encoder), kind(by_recurrent, *by_residual)
    )
    by_last = jnp.sum(by_threshold(slopes, mean, *by_output))
    error = jnp.sum(weight * ((mean - codes) ** 2 + var))
    return error, mean, AnchoredGradient(gradient, jnp.append(by_shrinkage, by_last))
