"""Predictive distributions as arguments of metrics: validated, and iterated over in blocks of coefficients.

Scores are sums over coefficients, so no temporary is larger than a block.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from bayeslista.distributions import SlabParts, SpikeSlab
from bayeslista.numerics.checks import as_real, check_entries, check_probability, check_range
from bayeslista.numerics.slabs import GaussianSlab, MixtureSlab, Slab

Forecast = SpikeSlab | tuple[ArrayLike, ArrayLike] | ArrayLike
"""A `SpikeSlab`, ``(mean, std)`` of a Gaussian, or samples whose first axis are the draws."""

Floats = NDArray[np.float64]

_BLOCK = 1 << 15  # coefficients of a block: their arrays fit the cache
_SAMPLES_BLOCK = 1 << 20  # draws of a block of samples


class ForecastParameters(NamedTuple):
    """Arrays that broadcast; `scale` is the variance of a slab (`atom`) or the standard deviation of a Gaussian."""

    prob_active: NDArray[np.floating]
    slab_mean: NDArray[np.floating]
    scale: NDArray[np.floating]
    atom: bool
    parts: SlabParts | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of distributions."""
        return np.broadcast_shapes(self.prob_active.shape, self.slab_mean.shape, self.scale.shape)


class Samples(NamedTuple):
    """Draws; the first axis counts them."""

    draws: NDArray[np.floating]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of distributions."""
        return self.draws.shape[1:]


class ForecastBlock(NamedTuple):
    """Spike and slab and true code of some coefficients, in double precision."""

    prob_active: Floats
    slab_mean: Floats
    slab_std: Floats
    code: Floats
    parts: MixtureSlab | None = None

    @property
    def slab(self) -> Slab:
        """The slab, one Gaussian or a mixture."""
        return self.parts or GaussianSlab(self.slab_mean, self.slab_std)


class Tails(NamedTuple):
    """``P(β ≤ b)`` and ``P(β ≥ b)`` of the true codes."""

    lower: Floats
    upper: Floats


def read_forecast(forecast: Forecast) -> ForecastParameters | Samples:
    """Validate a prediction."""
    if isinstance(forecast, SpikeSlab):
        moments = forecast.prob_active, forecast.slab_mean, forecast.slab_var
        return ForecastParameters(*moments, True, forecast.slab_parts)
    if isinstance(forecast, tuple):
        if len(forecast) != 2:
            raise ValueError(
                f"A prediction as a tuple must be (mean, std), got {len(forecast)} items. Pass a SpikeSlab, "
                "(mean, std), or an array of samples."
            )
        mean, std = (as_real(name, values) for name, values in zip(("mean", "std"), forecast, strict=True))
        _check_broadcast("std", std.shape, "mean", mean.shape)
        for name, array in (("mean", mean), ("std", std)):
            check_entries(np.isfinite(array), name, array, "be finite", "Replace NaN and infinite entries.")
        check_entries(std >= 0, "std", std, "be at least 0", "Pass standard deviations, not their logarithms.")
        return ForecastParameters(np.ones(()), mean, std, False)
    if isinstance(forecast, list) and len(forecast) == 2:
        raise ValueError("A prediction as a list of two would be two samples. Pass a mean and its std as a tuple.")
    draws = as_real("samples", forecast)
    if draws.ndim < 1 or len(draws) < 2:
        raise ValueError(
            f"Samples must have at least two draws on an axis before those of the codes, got an array of shape "
            f"{draws.shape}. For a mean and a standard deviation pass a tuple (mean, std)."
        )
    check_entries(np.isfinite(draws), "samples", draws, "be finite", "Drop or repair those draws.")
    return Samples(draws)


def read_codes(read: ForecastParameters | Samples, B: ArrayLike) -> NDArray[np.floating]:
    """Validate true codes, which must broadcast against the prediction."""
    codes = as_real("B", B)
    if isinstance(read, Samples) and codes.ndim and read.draws.shape == codes.shape:
        raise ValueError(
            f"A prediction as an array holds samples, draws first, but this one has the shape {codes.shape} "
            "of the codes themselves. Pass a SpikeSlab, a tuple (mean, std), or samples of one more dimension."
        )
    _check_broadcast("B", codes.shape, "the prediction", read.shape)
    if 0 in (*codes.shape, *read.shape):
        raise ValueError(
            f"There is nothing to score: B has shape {codes.shape}, the prediction {read.shape}. "
            "Pass at least one coefficient."
        )
    check_entries(np.isfinite(codes), "B", codes, "be finite", "Drop or repair those codes.")
    return codes


def check_level(level: float) -> float:
    """Validate the level of an interval."""
    return check_probability("level", level)


def check_squares(read: ForecastParameters | Samples, codes: NDArray[np.floating]) -> None:
    """Refuse numbers whose squares overflow."""
    check_range("B", codes)
    if isinstance(read, Samples):
        check_range("samples", read.draws)
    else:
        check_range("mean", read.slab_mean)
        if not read.atom:
            check_range("std", read.scale)


def moment_blocks(
    read: ForecastParameters | Samples, codes: NDArray[np.floating]
) -> Iterator[tuple[Floats, Floats, Floats]]:
    """Mean and variance of predictions, and the true codes, block by block."""
    check_squares(read, codes)
    if isinstance(read, Samples):
        for draws, code in sample_blocks(read, codes):
            yield draws.mean(axis=0), draws.var(axis=0, ddof=1), code
    else:
        for q, m, s, code, _ in blocks(read, codes):
            yield q * m, q * s * s + q * (1.0 - q) * m * m, code


def prob_active_blocks(
    read: ForecastParameters | Samples, codes: NDArray[np.floating]
) -> Iterator[tuple[Floats, NDArray[np.bool_]]]:
    """P(active) and the indicator of true activity, block by block; a Gaussian is refused."""
    _require_atom(read)
    if isinstance(read, Samples):
        for draws, code in sample_blocks(read, codes):
            yield np.mean(draws != 0.0, axis=0), code != 0.0
    else:
        for block in blocks(read, codes):
            yield block.prob_active, block.code != 0.0


def spike_slab_blocks(read: ForecastParameters | Samples, codes: NDArray[np.floating]) -> Iterator[ForecastBlock]:
    """Spike and slab, block by block; of samples by moments of the nonzero draws, their share kept off 0 and 1.

    With fewer than two nonzero draws, the variance is the mean square of all nonzero draws.
    """
    if isinstance(read, ForecastParameters):
        yield from blocks(read, codes)
        return
    check_squares(read, codes)
    n, n_active = len(read.draws), int(np.count_nonzero(read.draws))
    square = sum(float(np.sum(np.square(draw, dtype=np.float64))) for draw in read.draws) / max(n_active, 1)
    for draws, code in sample_blocks(read, codes):
        active = draws != 0.0
        count = active.sum(axis=0)
        mean = draws.sum(axis=0) / np.maximum(count, 1)
        squares = np.sum(np.square(draws - mean), axis=0, where=active)
        var = np.where(count > 1, squares / np.maximum(count - 1, 1), square or 1.0)
        yield ForecastBlock(np.clip(count, 0.5, n - 0.5) / n, mean, np.sqrt(var), code)


def blocks(read: ForecastParameters, codes: NDArray[np.floating]) -> Iterator[ForecastBlock]:
    """Spike and slab of all coefficients in order, block by block, without a copy of what broadcasts."""
    arrays = (read.prob_active, read.slab_mean, read.scale, codes)
    walk = np.nditer(
        arrays,
        flags=["external_loop", "buffered"],
        op_flags=[["readonly"]] * 4,
        op_dtypes=[np.dtype(np.float64)] * 4,
        order="C",
        buffersize=_BLOCK,
    )
    parts = None
    if read.parts is not None:
        shape, n_parts = np.broadcast_shapes(read.shape, codes.shape), read.parts.mean.shape[-1]
        parts = [np.broadcast_to(part, (*shape, n_parts)).reshape(-1, n_parts) for part in read.parts]
    begin = 0
    for q, m, scale, b in walk:
        mixture = None
        if parts is not None:
            weight, mean, var = (part[begin : begin + q.size].astype(np.float64) for part in parts)
            mixture = MixtureSlab(weight, mean, np.sqrt(var))
        begin += q.size
        yield ForecastBlock(q, m, np.sqrt(scale) if read.atom else scale, b, mixture)


def sample_blocks(samples: Samples, codes: NDArray[np.floating]) -> Iterator[tuple[Floats, Floats]]:
    """Draws of shape (S, m) and true codes of shape (m,), block by block."""
    n, shape = len(samples.draws), np.broadcast_shapes(samples.shape, codes.shape)
    missing = (1,) * (len(shape) - len(samples.shape))
    draws = np.broadcast_to(samples.draws.reshape(n, *missing, *samples.shape), (n, *shape)).reshape(n, -1)
    flat = np.broadcast_to(codes, shape).reshape(-1)
    size = max(1, _SAMPLES_BLOCK // n)
    for begin in range(0, flat.size, size):
        part = slice(begin, begin + size)
        yield draws[:, part].astype(np.float64), flat[part].astype(np.float64)


def lower_tail(block: ForecastBlock) -> tuple[Floats, Floats]:
    """``P(β ≤ b)`` and ``P(β = b)`` of the true codes."""
    q, b, slab = block.prob_active, block.code, block.slab
    points = slab.point_mass(b)
    atom = np.where(b == 0.0, 1.0 - q, 0.0) + q * points
    return q * slab.lower(b) + np.where(b >= 0.0, 1.0 - q, 0.0), atom


def tails(block: ForecastBlock) -> Tails:
    """``P(β ≤ b)`` and ``P(β ≥ b)`` of the true codes, both with full relative precision."""
    q, m, s, b, parts = block
    mirrored = None if parts is None else parts.mirrored()
    return Tails(lower_tail(block)[0], lower_tail(ForecastBlock(q, -m, s, -b, mirrored))[0])


def sample_tails(draws: Floats, code: Floats, given_active: bool = False) -> Tails:
    """Shares of draws, or of those that are not zero, at most and at least the true codes; −1 where there are none."""
    counted = draws != 0.0 if given_active else np.ones_like(draws, bool)
    n = counted.sum(axis=0)
    sides = (np.sum(side & counted, axis=0) for side in (draws <= code, draws >= code))
    return Tails(*(np.where(n > 0, side / np.maximum(n, 1), -1.0) for side in sides))


def _require_atom(read: ForecastParameters | Samples) -> None:
    """Refuse distributions without an atom at zero."""
    if read.atom if isinstance(read, ForecastParameters) else not read.draws.all():
        return
    raise ValueError(
        "This prediction has no atom at zero: a Gaussian (mean, std), or samples without an exact zero. "
        "Give it a spike: with_spike(mean, std, fit_spike_head(held_out_mean, held_out_std, B_held_out))."
    )


def _check_broadcast(name: str, shape: tuple[int, ...], other_name: str, other: tuple[int, ...]) -> None:
    try:
        np.broadcast_shapes(shape, other)
    except ValueError:
        raise ValueError(
            f"{name} has shape {shape}, which does not broadcast against {other_name}, of shape {other}. "
            "Give one coefficient for each distribution."
        ) from None
