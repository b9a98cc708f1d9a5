"""How time and memory grow with pairs, coefficients, observations and layers.

    python benchmarks/speed/growth.py results/bench_growth

Times are those of an epoch of the default inference and of a prediction, on one core, the best of three rounds over all
sizes of a sweep, lest a slow spell of the machine meet one of them alone; an exponent is the slope of a line through
logarithms. Memory is the peak above what the process held before the call, in a process
that has made the same call once, so that the compiler's own is not counted.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("BENCH_CORES", "1")

import numpy as np

BASE = {"N": 512, "D": 256, "K": 64, "L": 8}
SWEEPS = {
    "N": [512, 1024, 2048, 4096],
    "D": [128, 256, 512, 1024],
    "K": [32, 64, 128, 256],
    "L": [8, 16, 32, 64],
}
MEMORY = """
import resource, sys, warnings
warnings.simplefilter("ignore")
import numpy as np
from bayeslista import BayesLISTA
from bayeslista.datasets import make_sparse_codes
n, d, k, layers, signals = map(int, sys.argv[1:])
data = make_sparse_codes(n, 1, k, d, random_state=0)
model = BayesLISTA(layers, design_matrix=data.design_matrix, max_iter=2, random_state=0)
def held(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field)) * 1024
def peak(call, warm=True):
    if warm:
        call()
    before = held("VmRSS")
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    result = call()
    return held("VmHWM") - before, result
fit, _ = peak(lambda: model.fit(data.Y_train, data.B_train))
predict, out = 0, ()
if signals:
    Y = np.random.default_rng(0).standard_normal((signals, k))
    model.predict(Y[:20000], return_std=True)
    predict, out = peak(lambda: model.predict(Y, return_std=True), warm=False)
print(fit, predict, sum(part.nbytes for part in out))
"""


def calls(n: int, d: int, k: int, layers: int) -> list[Callable[[], object]]:
    """An epoch and a prediction."""
    from _problems import in_precision

    from bayeslista import BayesLISTA
    from bayeslista.bayes_lista import variational
    from bayeslista.datasets import make_sparse_codes
    from bayeslista.numerics.linear import ista_weights

    data = make_sparse_codes(n, n, k, d, random_state=0)
    start = ista_weights(data.design_matrix)

    class Double:
        dtype = "float64"

    few = data.Y_train[:8], data.B_train[:8]
    given = data.design_matrix, start.encoder, np.full(layers, 0.1), (data.Y_train, data.B_train), few, True
    state, problem = in_precision(Double, variational.init, *given)()
    shape = n // 32, 32
    rows, rates = np.arange(n).reshape(shape), np.full(shape[0], 1e-3)
    call = in_precision(Double, variational.step, state, problem, rows, np.ones(shape), rates)
    model = BayesLISTA(layers, design_matrix=data.design_matrix, max_iter=1, random_state=0)
    model.fit(data.Y_train[:64], data.B_train[:64])
    return [call, lambda: model.predict(data.Y_test, return_std=True)]


def memory(n: int, d: int, k: int, layers: int, signals: int = 0) -> list[int]:
    """Peak bytes of a fit, of a prediction, and what it returned."""
    command = [sys.executable, "-c", MEMORY, *map(str, (n, d, k, layers, signals))]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def main() -> None:
    import warnings

    from _floor import best

    warnings.simplefilter("ignore")
    out = Path(sys.argv[1])
    found = {"sweeps": {}, "memory": []}
    for name, values in SWEEPS.items():
        made = [calls(*(value if key == name else BASE[key] for key in "NDKL")) for value in values]
        rounds = [[[best(call, seconds=0.3) for call in each] for each in made] for _ in range(3)]
        rows = [[value, *times] for value, times in zip(values, np.min(rounds, axis=0).tolist(), strict=True)]
        print(name, rows, flush=True)
        x, pass_, prediction = np.log(np.array(rows, float)).T
        found["sweeps"][name] = {
            "rows": rows,
            "pass_exponent": float(np.polyfit(x, pass_, 1)[0]),
            "prediction_exponent": float(np.polyfit(x, prediction, 1)[0]),
        }
    for n, d, k, layers in [(200, 784, 100, 20), (200, 784, 250, 20), (200, 1500, 250, 10), (1000, 1500, 250, 10)]:
        weights, data = 2 * 8 * (d * d + d * k), 8 * n * (d + k)
        peak, _, _ = memory(n, d, k, layers)
        found["memory"].append({"size": [n, d, k, layers], "peak": peak, "weights": weights, "data": data})
        print(found["memory"][-1], flush=True)
    _, peak, returned = memory(200, 100, 50, 10, signals=1_000_000)
    found["million"] = {"peak": peak, "returned": returned}
    print(found["million"], flush=True)
    out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    draw(found, out)


def draw(found: dict, out: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "bayeslista"
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), sharey=True, layout="constrained")
    words = {"N": "pairs or signals, N", "D": "coefficients, D", "K": "observations, K", "L": "layers, L"}
    for axis, (name, sweep) in zip(axes, found["sweeps"].items(), strict=True):
        x, pass_, prediction = np.array(sweep["rows"]).T
        axis.loglog(x, pass_, "o-", label=f"pass: exponent {sweep['pass_exponent']:.2f}")
        axis.loglog(x, prediction, "s--", label=f"prediction: {sweep['prediction_exponent']:.2f}")
        axis.set_xlabel(words[name])
        axis.set_xticks(x, [f"{value:.0f}" for value in x])
        axis.minorticks_off()
        axis.legend(fontsize="small")
    axes[0].set_ylabel("seconds")
    figure.suptitle("N = 512, D = 256, K = 64, L = 8 where not said otherwise; float64, one core")
    for kind in ("svg", "png"):
        figure.savefig(out.with_suffix(f".{kind}"), metadata={"Date": None} if kind == "svg" else None)


if __name__ == "__main__":
    main()
