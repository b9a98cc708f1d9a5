"""Sparse codes with a distribution for every coefficient: the quick start of the README as a script."""

from bayeslista import SpikeSlabNet
from bayeslista.datasets import make_sparse_codes
from bayeslista.metrics import nmse
from bayeslista.plots import plot_signal

data = make_sparse_codes(n_train=500, n_test=50, n_observed=20, n_components=30, random_state=0)

model = SpikeSlabNet(mode="fast", design_matrix=data.design_matrix, random_state=0)
model.fit(data.Y_train, data.B_train)  # observations (n, K), codes (n, D)

mean, std = model.predict(data.Y_test, return_std=True)
error = nmse(data.B_test, mean)
print(f"NMSE of the mean: {error:.2f}")
assert mean.shape == std.shape == data.B_test.shape
assert error < 0.35, "no better than a Lasso would be"

posterior = model.predict_dist(data.Y_test)
active = data.B_test != 0
found, false_alarm = posterior.prob_active[active].mean(), posterior.prob_active[~active].mean()
print(f"P(active): {found:.2f} on average where the truth is not zero, {false_alarm:.2f} where it is")
assert found > 4 * false_alarm

low, high = posterior.interval(0.9)
inside = (low <= data.B_test) & (data.B_test <= high)
print(f"90 % intervals hold {inside.mean():.0%} of all coefficients, {inside[active].mean():.0%} of those not zero")
assert inside.mean() > 0.9

axes = plot_signal(posterior[0], data.B_test[0])  # axes.figure.savefig("signal.png") writes it
