"""The network's predicted variance, beside draws of its weights: afresh in every layer, or shared by all.

    python benchmarks/draws.py [--out results/draws.md]

The ratio is that of root mean squares over coefficients and signals: predicted standard deviation over that of 2,000
draws. Moments treat the weights of every layer as independent of those of the others, which draws made afresh in every
layer are; the network has the same weights in all layers. They treat coefficients as independent, too; a few draws at
the end of a fit, of other signals, make up for that.
"""

import argparse
from pathlib import Path

import numpy as np

from bayeslista import BayesLISTA
from bayeslista.datasets import make_sparse_codes
from bayeslista.lista.proximal import soft_threshold

N_DRAWS, N_SIGNALS, SEEDS = 2000, 20, (0, 1, 2)
N_SHUFFLED = 500, 4  # draws and signals where every draw has its own matrices at once


def drawn_variance(model: BayesLISTA, Y: np.ndarray, afresh: bool, seed: int) -> float:
    """Mean variance of the output over draws of W and R."""
    random = np.random.default_rng(seed)
    X = model.design_matrix_
    # The variance of S is that of R and what W brings along through X.
    own = np.sqrt(model.recurrent_std_**2 - model.encoder_std_**2 @ X**2)
    departure = model.recurrent_ - np.eye(len(own)) + model.encoder_ @ X
    total = square = np.zeros((len(Y), len(own)))
    for _ in range(N_DRAWS):
        codes = np.zeros_like(total)
        for layer, threshold in enumerate(model.shrinkage_):
            if afresh or layer == 0:
                W = model.encoder_ + model.encoder_std_ * random.standard_normal(model.encoder_.shape)
                R = departure + own * random.standard_normal(own.shape)
            codes = soft_threshold(codes + (Y - codes @ X.T) @ W.T + codes @ R.T, threshold)
        total, square = total + codes, square + codes**2
    return float(np.mean(square / N_DRAWS - (total / N_DRAWS) ** 2))


def independent_variance(model: BayesLISTA, Y: np.ndarray, seed: int) -> float:
    """The same with weights afresh, and the draws of each coefficient in an order of their own after every layer."""
    random = np.random.default_rng(seed)
    X = model.design_matrix_
    own = np.sqrt(model.recurrent_std_**2 - model.encoder_std_**2 @ X**2)
    departure = model.recurrent_ - np.eye(len(own)) + model.encoder_ @ X
    variances = []
    for observation in Y[: N_SHUFFLED[1]]:
        codes = np.zeros((N_SHUFFLED[0], len(own)))
        for threshold in model.shrinkage_:
            W = model.encoder_ + model.encoder_std_ * random.standard_normal((len(codes), *model.encoder_.shape))
            R = departure + own * random.standard_normal((len(codes), *own.shape))
            entering = codes + np.einsum("ndk,nk->nd", W, observation - codes @ X.T) + np.einsum("nde,ne->nd", R, codes)
            codes = random.permuted(soft_threshold(entering, threshold), axis=0)
        variances.append(codes.var(axis=0))
    return float(np.mean(variances))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/draws.md"))
    out = parser.parse_args().out
    lines = [
        "# Moments and draws",
        "",
        "Made by `python benchmarks/draws.py`: predicted standard deviation of BayesLISTA's output (without noise)",
        f"over that of {N_DRAWS:,} draws of the weights, on the paper's problem (K = 50); mean and range of",
        f"{len(SEEDS)} seeds. Beside it are moments alone, without what draws at the end of the fit add to them. In",
        f"the last column, of {N_SHUFFLED[0]} draws and {N_SHUFFLED[1]} signals, weights are drawn afresh and",
        "coefficients made independent of each other after every layer, as moments take them to be.",
        "",
        "| layers | predicted / drawn afresh in every layer | predicted / shared by all layers | moments / afresh | "
        "moments / afresh, coefficients independent |",
        "|---|---|---|---|---|",
    ]
    for n_layers in (4, 10, 20):
        ratios = []
        for seed in SEEDS:
            data = make_sparse_codes(1000, N_SIGNALS, 50, 100, random_state=seed)
            model = BayesLISTA(n_layers, design_matrix=data.design_matrix, random_state=seed)
            var = model.fit(data.Y_train, data.B_train).predict_dist(data.Y_test, include_noise=False).var()
            model._learner.variance_ratio = 1.0
            alone = model.predict_dist(data.Y_test, include_noise=False).var()
            afresh, shared = (drawn_variance(model, data.Y_test, afresh, seed) for afresh in (True, False))
            predicted = np.array([var.mean(), var.mean(), alone.mean(), alone[: N_SHUFFLED[1]].mean()])
            ratios.append(np.sqrt(predicted / [afresh, shared, afresh, independent_variance(model, data.Y_test, seed)]))
        cells = [f"{part.mean():.3f} ({part.min():.3f} to {part.max():.3f})" for part in np.array(ratios).T]
        lines.append(f"| {n_layers} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
