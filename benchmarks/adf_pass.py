"""One ADF pass with the hand-derived gradient against the same pass with automatic differentiation.

Both filter the same pairs with the same update; only the gradient of the evidence differs: written out by hand, or
`jax.grad` of `network.log_evidence` with its `scan` over layers, or `jax.grad` of the same evidence with the moments
from textbook formulas, which is what one would write without `moments`. Times are the best of several passes, taken in
turns in one process on one core; read the ratios.

    python benchmarks/adf_pass.py [--out results/adf_pass.md]
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln, ndtr

from bayeslista.datasets import make_sparse_codes
from bayeslista.inference import adf
from bayeslista.network import Weights, evidence_and_gradient, log_evidence
from bayeslista.posterior import Belief, MatrixPrior, initial_belief
from bayeslista.proximal import ista_weights

SIZES = [(100, 50, 4), (100, 50, 20)]  # D, K, L
Gradient = Callable[..., Weights]


def by_hand(weights, observation, code, shrinkage, shape, rate):
    return evidence_and_gradient(weights, observation, code, shrinkage, shape, rate)[1]


def textbook_log_evidence(weights, observation, code, shrinkage, shape, rate):
    (w_mean, w_var), (s_mean, s_var) = weights
    drive_mean, drive_var = w_mean @ observation, w_var @ observation**2

    def density(t):
        return jnp.exp(-0.5 * t * t) / jnp.sqrt(2 * jnp.pi)

    def layer(carry, threshold):
        mean, var = carry
        std = jnp.sqrt(var)
        up, down = (mean - threshold) / std, (-mean - threshold) / std
        active = ndtr(up) + ndtr(down)
        e = std * (density(up) + up * ndtr(up) - density(down) - down * ndtr(down))
        second = (1 + up**2) * ndtr(up) + up * density(up) + (1 + down**2) * ndtr(down) + down * density(down)
        s = var * second - e**2
        following = drive_mean + s_mean @ e, drive_var + s_mean**2 @ s + s_var @ (e**2 + s)
        return following, (active, e, s)

    _, (active, e, s) = jax.lax.scan(layer, (drive_mean, drive_var), shrinkage)
    active, e, s = active[-1], e[-1], s[-1]
    mean = e / active
    var = s / active - (1 - active) * mean**2 + rate / (shape - 1)
    spike = jnp.exp(gammaln(shape + 0.5) - gammaln(shape)) / jnp.sqrt(2 * jnp.pi * rate)
    spike *= (1 + 0.5 * code**2 / rate) ** -(shape + 0.5)
    slab = jnp.exp(-0.5 * (code - mean) ** 2 / var) / jnp.sqrt(2 * jnp.pi * var)
    return jnp.sum(jnp.log((1 - active) * spike + active * slab))


GRADIENTS: dict[str, Gradient] = {
    "by hand": by_hand,
    "jax.grad": jax.grad(log_evidence),
    "jax.grad, textbook moments": jax.grad(textbook_log_evidence),
}


def one_pass(gradient: Gradient) -> Callable[..., Belief]:
    """A pass of the estimator's own update with this gradient."""

    @jax.jit
    def run(belief: Belief, pairs: adf.Pair, shrinkage: jax.Array) -> Belief:
        def step(weights: Weights, pair: adf.Pair) -> tuple[Weights, None]:
            slopes = gradient(weights, *pair, shrinkage, *belief.noise_precision)
            updated = (adf._filtered(part, slope)[0] for part, slope in zip(weights, slopes, strict=True))
            return Weights(*updated), None

        return belief._replace(weights=jax.lax.scan(step, belief.weights, pairs)[0])

    return run


def measure(d: int, k: int, n_layers: int, repeats: int) -> dict[str, float]:
    data = make_sparse_codes(1000, 1, k, d, random_state=0)
    with jax.enable_x64(True):
        start = ista_weights(data.design_matrix)
        means = jnp.asarray(start.encoder), jnp.asarray(start.recurrent)
        variances = 0.2 / (20 * k * n_layers), 1 / (d * n_layers)
        priors = (MatrixPrior(mean, jnp.asarray(var)) for mean, var in zip(means, variances, strict=True))
        belief = initial_belief(*means, *priors)
        arguments = belief, adf.Pair(jnp.asarray(data.Y_train), jnp.asarray(data.B_train)), jnp.full(n_layers, 0.1)
        passes = {name: one_pass(gradient) for name, gradient in GRADIENTS.items()}
        best = dict.fromkeys(passes, float("inf"))
        for run in passes.values():
            jax.block_until_ready(run(*arguments))
        for _ in range(repeats):
            for name, run in passes.items():
                begin = time.perf_counter()
                jax.block_until_ready(run(*arguments))
                best[name] = min(best[name], time.perf_counter() - begin)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/adf_pass.md"))
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    lines = [
        "# One ADF pass over 1,000 pairs, float64, one core",
        "",
        "Made by `make bench`. Microseconds a pair, best of several passes in one process; read the ratios.",
        "",
        "| D, K, L | "
        + " | ".join(GRADIENTS)
        + " | "
        + " | ".join(f"{name} / by hand" for name in list(GRADIENTS)[1:])
        + " |",
        "|" + "---|" * (2 * len(GRADIENTS)),
    ]
    for size in SIZES:
        seconds = measure(*size, arguments.repeats)
        hand = seconds["by hand"]
        cells = [f"{1e3 * value:.0f}" for value in seconds.values()]
        cells += [f"{value / hand:.2f}" for name, value in seconds.items() if name != "by hand"]
        lines.append(f"| {', '.join(map(str, size))} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text("\n".join(lines) + "\n")
    print(f"written to {arguments.out}")


if __name__ == "__main__":
    main()
