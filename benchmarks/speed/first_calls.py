"""What a new process pays: imports, first calls with a cold and a warm cache of compiled functions, and whole fits.

    python benchmarks/speed/first_calls.py results/bench_first.json

Every number is from a process of its own, the best of two. First calls are measured on all cores, as a user makes
them, and on one; all else on one. They begin after the import, which has a bar of its own, as a user's do; with the
import they are measured, too. Python may write its bytecode, as it does unless told otherwise.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PREPARE = """
import time
imported = time.perf_counter()
import bayeslista.estimators
from bayeslista.datasets import make_sparse_codes
imported -= time.perf_counter()
data = make_sparse_codes(1000, 100, 50, 100, random_state=0)
given = dict(design_matrix=data.design_matrix, random_state=0)
"""
FIRST = {
    "LISTA: fit of one epoch, and predict": "bayeslista.LISTA(max_iter=1, **given).fit(data.Y_train, data.B_train)"
    ".predict(data.Y_test)",
    "BayesLISTA: fit of one epoch, and predict with std": "bayeslista.BayesLISTA(max_iter=1, **given)"
    ".fit(data.Y_train, data.B_train).predict(data.Y_test, return_std=True)",
    "SpikeSlabNet, fast, uncalibrated: fit, and predict with std": "bayeslista.SpikeSlabNet(mode='fast', "
    "training='none', **given).fit(data.Y_train, data.B_train).predict(data.Y_test, return_std=True)",
    "SpikeSlabNet, uncalibrated: fit, and predict with std": "bayeslista.SpikeSlabNet(mode='accurate', "
    "training='none', **given).fit(data.Y_train, data.B_train).predict(data.Y_test, return_std=True)",
}
FITS = {
    "LISTA": "bayeslista.LISTA(**given).fit(data.Y_train, data.B_train)",
    "BayesLISTA": "bayeslista.BayesLISTA(**given).fit(data.Y_train, data.B_train)",
}
TIMED = PREPARE + "begin = time.perf_counter()\n{}\ntaken = time.perf_counter() - begin\nprint(taken - imported, taken)"
TORCH = """
import time, numpy as np, torch
from bayeslista.datasets import make_sparse_codes
from bayeslista.numerics.linear import ista_weights
torch.set_num_threads(1)
torch.manual_seed(0)
data = make_sparse_codes(1000, 100, 50, 100, random_state=0)
begin = time.perf_counter()
start = ista_weights(data.design_matrix)
W, S = (torch.nn.Parameter(torch.tensor(part)) for part in start[:2])
T = torch.nn.Parameter(torch.full((10,), 0.1, dtype=W.dtype))
optimizer = torch.optim.Adam([W, S, T], lr=1e-3)
Y, B = torch.tensor(data.Y_train), torch.tensor(data.B_train)
def forward(rows):
    drive = rows @ W.T
    codes = torch.sign(drive) * torch.relu(drive.abs() - T[0])
    for threshold in T[1:]:
        entering = drive + codes @ S.T
        codes = torch.sign(entering) * torch.relu(entering.abs() - threshold)
    return codes
best, stale = float("inf"), 0
while stale < 10:
    order = torch.randperm(900)
    for i in range(0, 900, 16):
        optimizer.zero_grad()
        ((forward(Y[order[i:i + 16]]) - B[order[i:i + 16]]) ** 2).mean().backward()
        optimizer.step()
    with torch.no_grad():
        error = float(((forward(Y[900:]) - B[900:]) ** 2).mean())
    stale = 0 if error < best * (1 - 1e-4) else stale + 1
    best = min(best, error)
print(time.perf_counter() - begin)
"""


def seconds(code: str, all_cores: bool = False, **environment: str) -> list[float]:
    """What a process prints: the last number is the time asked for."""
    settings = environment if all_cores else {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **environment}
    command = [*([] if all_cores else ["taskset", "-c", "0"]), sys.executable, "-W", "ignore", "-c", code]
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=inherited | settings, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def best(code: str, times: int = 2, all_cores: bool = False, **environment: str) -> list[float]:
    """The shortest of several times."""
    return min((seconds(code, all_cores, **environment) for _ in range(times)), key=lambda found: found[-1])


def main() -> None:
    out = Path(sys.argv[1])
    kinds = "cold", "warm", "cold on one core", "warm on one core", "warm with import", "fit", "import"
    found: dict[str, dict[str, float]] = {kind: {} for kind in kinds}
    timed_import = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"
    for name in ("jax, sklearn.base, scipy.special", "bayeslista.estimators"):
        found["import"][name] = best(timed_import.format(name), times=5)[-1]
    for name, code in FIRST.items():
        for all_cores, where in ((True, ""), (False, " on one core")):
            found["cold" + where][name] = best(TIMED.format(code), all_cores=all_cores)[-1]
            with tempfile.TemporaryDirectory() as folder:
                cache = {"JAX_COMPILATION_CACHE_DIR": folder, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
                seconds(TIMED.format(code), all_cores, **cache)
                with_import, alone = best(TIMED.format(code), all_cores=all_cores, **cache)
                found["warm" + where][name] = alone
                if all_cores:
                    found["warm with import"][name] = with_import
        print(name, *(found[kind][name] for kind in kinds[:5]), flush=True)
    for name, code in FITS.items():
        found["fit"][name] = best(TIMED.format(code))[-1]
    found["fit"]["LISTA in PyTorch, until its held-out error has not fallen in ten epochs"] = best(TORCH)[-1]
    found["at"] = {"time": time.time()}
    out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
