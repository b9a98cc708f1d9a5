r"""Moments through the layers of the network with coupled weights W and R, and the gradient of its expected error.

With the design matrix X given, :math:`S = I - W X + R` (coupled weights, as in LISTA-CP): every pair (W, S) is
reachable, and ``R`` is the departure of S from the relation of proximal gradient steps. W (``encoder``) and R
(``residual``) have independent Gaussian entries with means M and variances V. For a layer with input mean ``e`` and
variance ``s``, and :math:`u = y - X e`,

.. math::
    c_m = M_W y + M_S e, \qquad c_v = B s + V_R e^2 + V_W u^2, \qquad B = M_S^2 + V_R + V_W X^2,

squares of matrices and vectors taken elementwise. Backwards, with :math:`g_m, g_v` the derivatives in
:math:`c_m, c_v` and :math:`g_u = 2 u \circ V_W^T g_v`:

.. math::
    g_s = B^T g_v, \quad g_e = M_S^T g_m - X^T g_u + 2 e \circ V_R^T g_v .

So a layer is three matrix products either way, with :math:`M_S`, with :math:`X` and with :math:`[B, V_R, V_W]`; the
derivatives in the weights of all layers together are two more. Where every variance is the product of a row factor and
a column factor (:class:`RowColumn`), the third product is one with :math:`B` alone. All is batched over observations.
"""

from typing import Any, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bayeslista.numerics.precision import AnyArray, largest_moment
from bayeslista.numerics.soft_threshold import slab_moments, soft_threshold_moments
from bayeslista.numerics.soft_threshold_fast import (
    Gaussian,
    Slopes,
    fast_moments,
    fast_moments_and_slopes,
    moments_backward,
    threshold_backward,
)


class RowColumn(NamedTuple):
    """Independent Gaussian entries of a matrix; a variance is the product of a row factor and a column factor."""

    mean: Float[Array, "m n"]
    rows: Float[Array, " m"]
    columns: Float[Array, " n"]

    @property
    def var(self) -> Float[Array, "m n"]:
        """The variance of every entry."""
        return self.rows[:, None] * self.columns


_Kind = TypeVar("_Kind", Gaussian, RowColumn)


class CoupledWeights(NamedTuple, Generic[_Kind]):
    """The posterior of W and R, both of one kind."""

    encoder: _Kind
    residual: _Kind


class Propagated(NamedTuple):
    """Means and variances before and after the last threshold, each of shape (n, D)."""

    entering: Gaussian
    output: Gaussian


class CoupledGradient(NamedTuple, Generic[_Kind]):
    """Derivatives in the weights' means and variances (or their factors), and in the threshold of every layer."""

    weights: CoupledWeights[_Kind]
    shrinkage: Float[Array, " L"]


class LayerMatrices(NamedTuple):
    """Matrices that all layers share: M_W, M_S, X and those of variances; the last two in the type of variances."""

    encoder: Float[Array, "D K"]
    recurrent: Float[Array, "D D"]
    design: Float[Array, "K D"]
    variances: "_Elementwise | _ByRowAndColumn"


class _Powers(NamedTuple):
    """The terms of c_v: s, e² and u²."""

    var: Array
    square: Array
    misfit_square: Array


class _LayerOutput(NamedTuple):
    """e, s and u of a layer, and the slopes of its threshold, kept for the backward sweep."""

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
    def of(cls, weights: CoupledWeights[Gaussian], recurrent: Array, design_matrix: AnyArray) -> Self:
        encoder, residual = weights
        of_var = recurrent * recurrent + residual.var + encoder.var @ (design_matrix * design_matrix)
        return cls(jnp.concatenate([of_var, residual.var, encoder.var], axis=1))

    def first(self, observed_square: Array) -> Array:
        """c_v of the first layer: V_W y²."""
        return observed_square @ self.matrix[:, -observed_square.shape[1] :].T

    def variance(self, powers: _Powers) -> Array:
        """c_v = B s + V_R e² + V_W u²."""
        return jnp.concatenate(powers, axis=1) @ self.matrix.T

    def back(self, by_var: Array) -> _Powers:
        """Derivatives in s, e² and u²."""
        return _Powers(*self._parts(by_var @ self.matrix))

    def gradient(
        self, by_var: Array, powers: _Powers, first: Array, observed_square: Array, design_square: AnyArray
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
    def of(cls, weights: CoupledWeights[RowColumn], recurrent: Array, design_matrix: AnyArray) -> Self:
        (_, p, q), (_, r, t) = weights
        of_var = recurrent * recurrent + r[:, None] * t + p[:, None] * (q @ (design_matrix * design_matrix))
        return cls(of_var, p, q, r, t)

    def first(self, observed_square: Array) -> Array:
        """c_v of the first layer: V_W y²."""
        return jnp.outer(observed_square @ self.encoder_columns, self.encoder_rows)

    def variance(self, powers: _Powers) -> Array:
        """c_v = B s + V_R e² + V_W u²."""
        of_encoder, of_residual = powers.misfit_square @ self.encoder_columns, powers.square @ self.residual_columns
        return (
            powers.var @ self.of_var.T
            + of_encoder[:, None] * self.encoder_rows
            + of_residual[:, None] * self.residual_rows
        )

    def back(self, by_var: Array) -> _Powers:
        """Derivatives in s, e² and u²."""
        by_encoder, by_residual = (by_var @ self.encoder_rows)[:, None], (by_var @ self.residual_rows)[:, None]
        return _Powers(by_var @ self.of_var, by_residual * self.residual_columns, by_encoder * self.encoder_columns)

    def gradient(
        self, by_var: Array, powers: _Powers, first: Array, observed_square: Array, design_square: AnyArray
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


def recurrent_mean(weights: CoupledWeights[_Kind], design_matrix: Float[AnyArray, "K D"]) -> Float[Array, "D D"]:
    """Mean of S, :math:`I - M_W X + M_R`."""
    identity = np.eye(design_matrix.shape[1], dtype=design_matrix.dtype)
    return weights.residual.mean - weights.encoder.mean @ design_matrix + identity


def layer_matrices(
    weights: CoupledWeights[_Kind], design_matrix: Float[AnyArray, "K D"], variance_dtype: np.dtype | None = None
) -> LayerMatrices:
    """The matrices that all layers share; variances are in `variance_dtype`, by default that of the weights."""
    recurrent = recurrent_mean(weights, design_matrix)
    kind = _Elementwise if isinstance(weights.encoder, Gaussian) else _ByRowAndColumn
    variances, dtype = kind.of(weights, recurrent, design_matrix), variance_dtype or recurrent.dtype
    largest = float(np.finfo(dtype).max)
    variances, design = jax.tree.map(
        lambda part: part.clip(-largest, largest).astype(dtype), (variances, design_matrix)
    )
    return LayerMatrices(weights.encoder.mean, recurrent, design, variances)


def _first(matrices: LayerMatrices, observations: Array) -> tuple[Array, Array, Gaussian]:
    """W y, the observations in the type of variances, and the input of the first threshold."""
    drive = observations @ matrices.encoder.T
    reduced = in_dtype(observations, matrices.design.dtype)
    return drive, reduced, _bounded(drive, matrices.variances.first(reduced * reduced))


def _next(matrices: LayerMatrices, drive: Array, reduced: Array, mean: Array, var: Array) -> tuple[Gaussian, Array]:
    """The input of the next threshold, c_m and c_v, and u = y − X e."""
    small = in_dtype(mean, var.dtype)
    if small.dtype == matrices.recurrent.dtype:
        # One product with [M_S; X] is faster than two; XLA concatenates once, before the loop over layers.
        both = mean @ jnp.concatenate([matrices.recurrent, matrices.design]).T
        recurrent, observed = both[:, : len(matrices.recurrent)], both[:, len(matrices.recurrent) :]
    else:
        recurrent, observed = mean @ matrices.recurrent.T, small @ matrices.design.T
    misfit = reduced - observed
    powers = _Powers(var, small * small, misfit * misfit)
    return _bounded(drive + recurrent, matrices.variances.variance(powers)), misfit


def in_dtype(values: Float[Array, "..."], dtype: np.dtype) -> Float[Array, "..."]:
    """Means in the floating type of variances, bounded so that their squares do not overflow."""
    if values.dtype == dtype:
        return values
    largest = largest_moment(jnp.zeros((), dtype))
    return jnp.clip(values, -largest, largest).astype(dtype)


def _bounded(mean: Array, var: Array) -> Gaussian:
    """Moments bounded so that their squares do not overflow: no infinity, no NaN."""
    largest = largest_moment(mean)
    return Gaussian(jnp.clip(mean, -largest, largest), jnp.minimum(var, largest_moment(var)))


@jax.jit
def propagate_layers(
    matrices: LayerMatrices, observations: Float[Array, "n K"], shrinkage: Float[AnyArray, " L"]
) -> Propagated:
    """Moments before and after the last threshold: c_m and c_v layer by layer."""
    drive, reduced, first = _first(matrices, observations)

    def layer(entering: Gaussian, threshold: Any) -> tuple[Gaussian, None]:
        output = fast_moments(*entering, threshold)
        (mean, var), _ = _next(matrices, drive, reduced, *output)
        # A factor of one that depends on the old variances: XLA then updates means in place, where it would copy them.
        one = jnp.where(jnp.isnan(jnp.sum(output.var[:1, :1])), jnp.nan, 1).astype(mean.dtype)
        return Gaussian(one * mean, var), None

    last, _ = jax.lax.scan(layer, first, shrinkage[:-1])
    return Propagated(last, fast_moments(*last, shrinkage[-1]))


def expected_error_and_gradient(
    weights: CoupledWeights[_Kind],
    design_matrix: Float[AnyArray, "K D"],
    observations: Float[Array, "n K"],
    codes: Float[Array, "n D"],
    shrinkage: Float[AnyArray, " L"],
    included: Float[Array, " n"],
) -> tuple[Float[Array, ""], Float[Array, "n D"], CoupledGradient[_Kind]]:
    r"""Expected squared error :math:`\sum (\beta - e)^2 + s` over pairs weighted by `included`; e; its gradient."""
    # Forward sweep: c_m, c_v → e, s of every layer.
    matrices = layer_matrices(weights, design_matrix)
    drive, reduced, first = _first(matrices, observations)

    def layer(entering: Gaussian, threshold: Any) -> tuple[Gaussian, _LayerOutput]:
        output, slopes = fast_moments_and_slopes(*entering, threshold)
        following, misfit = _next(matrices, drive, reduced, *output)
        return following, _LayerOutput(*output, misfit, slopes)

    last, outputs = jax.lax.scan(layer, first, shrinkage[:-1])
    (mean, var), slopes = fast_moments_and_slopes(*last, shrinkage[-1])
    weight = included[:, None]
    by_output = 2 * weight * (mean - codes), jnp.broadcast_to(weight, var.shape)

    # Backward sweep: g_m, g_v → g_s, g_e, g_u of the layer before → its g_m, g_v.
    def back(
        carry: tuple[Array, Array], before: _LayerOutput
    ) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        by_mean, by_var = carry
        by_s, by_square, by_misfit_square = matrices.variances.back(by_var)  # Bᵀ g_v, V_Rᵀ g_v, V_Wᵀ g_v
        by_misfit = 2 * before.misfit * by_misfit_square  # g_u = 2 u ∘ V_Wᵀ g_v
        # g_e = M_Sᵀ g_m − Xᵀ g_u + 2 e ∘ V_Rᵀ g_v
        by_e = by_mean @ matrices.recurrent - by_misfit @ matrices.design + 2 * before.mean * by_square
        by_shrinkage = jnp.sum(threshold_backward(before.slopes, before.mean, by_e, by_s))
        return moments_backward(before.slopes, before.mean, by_e, by_s), (by_mean, by_var, by_shrinkage)

    start = moments_backward(slopes, mean, *by_output)
    (first_mean, first_var), (by_means, by_vars, by_shrinkage) = jax.lax.scan(back, start, outputs, reverse=True)
    # Derivatives in the weights: outer products over all layers and pairs as one matrix product.
    rows, by_mean_rows, by_var_rows = jax.tree.map(
        lambda part: part.reshape(-1, part.shape[-1]), (outputs, by_means, by_vars)
    )
    squares = observations * observations, design_matrix * design_matrix
    by_square, by_encoder, by_residual = matrices.variances.gradient(by_var_rows, rows.powers, first_var, *squares)
    # ∂/∂M_S = Σ g_m eᵀ + 2 M_S ∘ Σ g_v sᵀ;  ∂/∂M_W = Σ g_m yᵀ − ∂/∂M_S Xᵀ;  ∂/∂M_R = ∂/∂M_S
    by_recurrent = by_mean_rows.T @ rows.mean + 2 * matrices.recurrent * by_square
    by_drive = first_mean + jnp.sum(by_means, axis=0)
    kind = type(weights.encoder)
    gradient = CoupledWeights(
        kind(by_drive.T @ observations - by_recurrent @ design_matrix.T, *by_encoder), kind(by_recurrent, *by_residual)
    )
    by_last = jnp.sum(threshold_backward(slopes, mean, *by_output))
    error = jnp.sum(weight * ((mean - codes) ** 2 + var))
    return error, mean, CoupledGradient(gradient, jnp.append(by_shrinkage, by_last))


def relative_errors(
    predicted: Float[Array, "... D"], codes: Float[Array, "... D"]
) -> tuple[Float[Array, "..."], Bool[Array, "..."]]:
    """``‖prediction − code‖ / ‖code‖``, 0 where the code is zero, and where it is not."""
    norms = jnp.linalg.norm(codes, axis=-1)
    nonzero = norms > 0
    errors = jnp.linalg.norm(predicted - codes, axis=-1) / jnp.where(nonzero, norms, 1)
    return jnp.where(nonzero, errors, 0), nonzero


def network_slab(entering: Gaussian, threshold: Any) -> tuple[Array, Array, Array]:
    """The spike and slab of the output: the soft-thresholded Gaussian input of the last layer."""
    mean, var = entering
    slab = slab_moments(mean, var, threshold)
    limits = jnp.finfo(mean.dtype)  # both states keep a positive probability, so that both have a finite log score
    prob_active = jnp.clip(soft_threshold_moments(mean, var, threshold).prob_active, limits.tiny, 1 - limits.eps)
    return prob_active, slab.mean, slab.var
