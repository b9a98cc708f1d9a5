"""The command ``regress``."""

import json

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import bayeslista
from bayeslista.cli import app

runner = CliRunner()


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.standard_normal((60, 4)), columns=["age", "dose", "weight", "height"])
    frame["response"] = 2.0 * frame["dose"] + rng.standard_normal(60)
    path = tmp_path_factory.mktemp("regress") / "table.csv"
    frame.to_csv(path, index=False)
    return path


def run(*arguments):
    return runner.invoke(app, ["regress", *map(str, arguments)])


def test_the_inclusion_table_is_printed_and_written(table, tmp_path):
    out, model = tmp_path / "inclusion.csv", tmp_path / "m.safetensors"
    done = run(table, "--target", "response", "--out", out, "--model", model)
    assert done.exit_code == 0, done.output
    assert "4 features" in done.stdout
    assert done.stdout.splitlines()[-1].endswith("at most 0.1: dose.")
    written = pd.read_csv(out)
    assert written["feature"][0] == "dose"
    inspected = runner.invoke(app, ["inspect", str(model)])
    assert (inspected.exit_code, "SpikeSlabRegressor, fitted" in inspected.stdout) == (0, True)
    pd.testing.assert_frame_equal(bayeslista.load(model).inclusion_table(), written)


def test_json_is_for_programs(table):
    done = run(table, "--target", "response", "--json")
    result = json.loads(done.stdout)
    assert result["selected"] == ["dose"]
    assert result["features"][0]["prob_active"] > 0.99


def test_a_wrong_target_is_refused_with_the_columns_that_there_are(table, tmp_path):
    done = run(table, "--target", "outcome")
    assert done.exit_code == 1
    assert "no column 'outcome'; it has age, dose, weight, height, response" in done.stderr
    np.save(tmp_path / "t.npy", np.eye(3))
    assert "no line of names" in run(tmp_path / "t.npy", "--target", "y").stderr
    assert run(table, "--target", "response", "--out", tmp_path / "no" / "x.csv").exit_code == 1
