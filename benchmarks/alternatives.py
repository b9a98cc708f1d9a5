"""Layers that SpikeSlabNet does not have: diagonal GAMP and AMP, beside those that it has.

Matrix, prior and noise are given; no scalar is learned. GAMP has a variance for every coefficient and observed value
and takes no factorisation; AMP has one for all. New moments are damped by the share in the table's name.

    python benchmarks/alternatives.py [--seeds 0 1 …] [--out results]
"""

import argparse
from pathlib import Path
from typing import Any

import jax
import numpy as np
from sklearn.utils import Bunch

from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from bayeslista.spike_slab.denoiser import denoise, slab_prior
from bayeslista.spike_slab.model import make_problem
from bayeslista.spike_slab.network import run_network
from bayeslista.spike_slab.starts import default_scalars

PROB_ACTIVE, SLAB_VAR, NOISE_VAR, N_LAYERS = 0.2, 1.17, 0.25, 20
DICTIONARIES = ("K = 50", "K = 80", "K = 50, equicorrelated 0.9")


def load(name: str, seed: int) -> Bunch:
    n_observed = int(name.split(",")[0].split()[-1])
    X = np.random.default_rng([seed, 5]).standard_normal((n_observed, 100))
    if "equicorrelated" in name:
        X = np.sqrt(0.1) * X + np.sqrt(0.9) * X[:, :1]
    return make_sparse_codes(1, 500, n_observed, 100, design_matrix=X, random_state=seed)


def mean_of(posterior: Any) -> np.ndarray:
    return np.asarray(jax.nn.sigmoid(posterior.log_odds) * posterior.slab_mean)


def generalised_message_passing(X: np.ndarray, Y: np.ndarray, share: float, common: bool) -> np.ndarray:
    """Sum-product GAMP; with `common`, its variances are averaged to those of AMP."""
    prior = slab_prior(PROB_ACTIVE, 0.0, SLAB_VAR, n_components=X.shape[1])
    power = X**2
    shape = len(Y), X.shape[1]
    mean, var = np.zeros(shape), np.full(shape, PROB_ACTIVE * SLAB_VAR)
    score, precision = np.zeros_like(Y), np.ones_like(Y)

    def averaged(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values.mean(axis=1, keepdims=True), values.shape) if common else values

    for _ in range(N_LAYERS):
        variance = averaged(var @ power.T)
        predicted = mean @ X.T - variance * score
        score = share * (Y - predicted) / (variance + NOISE_VAR) + (1 - share) * score
        precision = share / (variance + NOISE_VAR) + (1 - share) * precision
        cavity_var = 1 / averaged(precision @ power)
        posterior = denoise(mean + cavity_var * (score @ X), cavity_var, prior)
        chance, slab_mean, slab_var = (
            np.asarray(part) for part in (jax.nn.sigmoid(posterior.log_odds), *posterior[1:])
        )
        mean = share * chance * slab_mean + (1 - share) * mean
        var = share * chance * (slab_var + (1 - chance) * slab_mean**2) + (1 - share) * var
    return mean


def layers(X: np.ndarray, Y: np.ndarray, n_vector: int, n_propagation: int, tempered: bool) -> np.ndarray:
    prior = slab_prior(PROB_ACTIVE, 0.0, SLAB_VAR, n_components=X.shape[1])
    scalars = default_scalars(n_vector, n_propagation, start="independent" if tempered else "plain")
    return mean_of(run_network(make_problem(X, NOISE_VAR, prior), Y, scalars))


METHODS = {
    "AMP": lambda X, Y: generalised_message_passing(X, Y, 1.0, True),
    "AMP, share 0.7": lambda X, Y: generalised_message_passing(X, Y, 0.7, True),
    "diagonal GAMP": lambda X, Y: generalised_message_passing(X, Y, 1.0, False),
    "diagonal GAMP, share 0.7": lambda X, Y: generalised_message_passing(X, Y, 0.7, False),
    "fast: vector AMP": lambda X, Y: layers(X, Y, N_LAYERS, 0, False),
    "plain expectation propagation": lambda X, Y: layers(X, Y, 14, 6, False),
    "accurate: vector AMP and tempered propagation": lambda X, Y: layers(X, Y, 14, 6, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--out", type=Path, default=Path("results"))
    arguments = parser.parse_args()
    lines = [
        "# Layers of other kinds",
        "",
        f"Made by `python benchmarks/alternatives.py`: NMSE on 500 signals after {N_LAYERS} layers, matrix, prior and",
        f"noise known, no scalar learned; mean ± standard deviation over {len(arguments.seeds)} seeds.",
        "",
        "| layers | " + " | ".join(DICTIONARIES) + " |",
        "|---|" + "---|" * len(DICTIONARIES),
    ]
    for method, solve in METHODS.items():
        cells = []
        for name in DICTIONARIES:
            errors = []
            for seed in arguments.seeds:
                data = load(name, seed)
                with jax.enable_x64(True):
                    errors.append(nmse(data.B_test, solve(data.design_matrix, data.Y_test)))
            diverged = not np.mean(errors) < 10
            cells.append("diverges" if diverged else f"{np.mean(errors):.3f} ± {np.std(errors):.3f}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "alternatives.md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
