"""One core or two, and results that say which."""

import os

import numpy  # noqa: F401 has the threads that are limited below
from threadpoolctl import threadpool_limits

CORES = int(os.environ.get("BENCH_CORES", "1"))
# Before JAX starts threads: a process that may run on one core starts one.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = str(CORES)
# Plugins of pytest have imported NumPy before, whose threads may be on all cores: a floor would be that of two.
threadpool_limits(CORES)


def pytest_benchmark_update_json(config, benchmarks, output_json):
    """Only medians, bests and what is beside them are kept: thousands of single times have no place in the history."""
    output_json["cores"] = CORES
    for name in ("commit_info", "machine_info"):
        output_json.pop(name, None)
    for each in output_json["benchmarks"]:
        each["stats"] = {key: each["stats"][key] for key in ("min", "median", "rounds")}
        each.pop("options", None)
