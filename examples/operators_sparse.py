"""A hundred thousand one-hot features: a sparse matrix stays sparse.

Ten thousand rows have twenty categorical features of five thousand values each, 100,000 columns in all, of which the
dense matrix would take 8 GB. Two of a hundred values have an effect. Columns of alike counts share a label::

    python examples/operators_sparse.py
"""

import numpy as np
from scipy.sparse import csr_array

from bayeslista import SpikeSlabNet
from bayeslista.metrics import nmse

ROWS, FEATURES, VALUES = 10_000, 20, 5_000
random = np.random.default_rng(0)
popularity = 1 / np.arange(1, VALUES + 1)
values = random.choice(VALUES, (ROWS, FEATURES), p=popularity / popularity.sum()) + VALUES * np.arange(FEATURES)
ends = np.arange(0, values.size + 1, FEATURES)
X = csr_array((np.ones(values.size), values.ravel(), ends), (ROWS, VALUES * FEATURES))

# %%
# Effects, and the response: one signal.
effects = random.standard_normal((1, X.shape[1])) * (random.random((1, X.shape[1])) < 0.02)
response = effects @ X.T + 0.1 * random.standard_normal((1, ROWS))

# %%
# A value that a row in a thousand has is known far better than one that is seen once: their columns differ in norm, and
# get labels by it. Noise, probabilities and variances are learned.
counts = X.sum(axis=0)
labels = np.floor(np.log2(np.maximum(counts, 0.5)) / 2).astype(int)
model = SpikeSlabNet(mode="fast", design_matrix=X, prior_labels=labels).fit(response)
dist = model.predict_dist(response)
common = counts >= 16
error = nmse(effects[:, common], dist.mean()[:, common])
print(f"noise: 0.1, learned: {model.noise_std_:.3f}; NMSE of the effects of {common.sum()} common values: {error:.3f}")
found = common & (dist.prob_active[0] > 0.95)
share = float(np.mean(effects[0][found] != 0))
print(f"{found.sum()} common values are active with a probability over 0.95, and {share:.1%} of them have an effect")

# What is claimed.
assert abs(model.noise_std_ - 0.1) < 0.05
assert error < 0.3
assert share > 0.9
