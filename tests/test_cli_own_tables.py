"""Tables of one's own on the command line: names of columns, headers of numbers, the index of pandas."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import bayeslista
from bayeslista.cli import app

runner = CliRunner()
NAMES = ["red", "green", "blue"]
rng = np.random.default_rng(0)
Y, B = rng.standard_normal((12, 3)), rng.standard_normal((12, 4))
PREDICT = "predict {} --model m.safetensors --out out.npz"


def run(words, code=0):
    done = runner.invoke(app, words.split())
    assert done.exit_code == code, done.output
    assert done.stderr.count("\n") <= 1
    return done


def fit(table="y.csv", options=""):
    return run(f"fit {table} b.csv --estimator ista --layers 2 --model m.safetensors {options}")


def predicted():
    with np.load("out.npz") as found:
        return found["mean"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Tables with names, and the codes that belong to them."""
    monkeypatch.chdir(tmp_path)
    pd.DataFrame(Y, columns=NAMES).to_csv("y.csv", index=False)
    pd.DataFrame(B, columns=list("abcd")).to_csv("b.csv", index=False)
    np.save("bare.npy", Y)
    return tmp_path


class TestNames:
    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_the_same_columns_in_another_order_are_refused(self, kind):
        fit(options="--test-fraction 0.2")
        frame = pd.read_csv("y.csv")[["red", "blue", "green"]]
        frame.to_csv("other.csv", index=False) if kind == "csv" else frame.to_parquet("other.parquet")
        for words in (
            PREDICT.format(f"other.{kind}"),
            f"evaluate other.{kind} b.csv --model m.safetensors",
            f"report other.{kind} b.csv --model m.safetensors --out page.html",
        ):
            message = run(words, code=1).stderr
            assert f"other.{kind} has 'blue' in column 2, where the model was fitted to 'green'" in message
            assert "in another order. Bring them into that of the fit: red, green, blue." in message
        assert not Path("out.npz").exists()

    def test_other_columns_are_refused(self):
        fit()
        Path("other.csv").write_text("red,green,infrared\n1,2,3\n")
        message = run(PREDICT.format("other.csv"), code=1).stderr
        assert "'infrared' in column 3, where the model was fitted to 'blue'. Pass the columns of the fit" in message

    @pytest.mark.parametrize("header", ["", "0,1,2\n", "# by a program, today\n", "measured,today\n"])
    def test_a_table_without_names_goes_by_position(self, header):
        fit()
        assert run(PREDICT.format("bare.npy")).stderr == ""
        expected = predicted()
        Path("other.csv").write_text(header + "\n".join(",".join(map(repr, row)) for row in Y.tolist()))
        assert run(PREDICT.format("other.csv")).stderr == ""
        np.testing.assert_array_equal(predicted(), expected)

    def test_a_model_without_names_takes_tables_with_any(self):
        fit("bare.npy")
        assert not hasattr(bayeslista.load("m.safetensors"), "feature_names_in_")
        assert run(PREDICT.format("y.csv")).stderr == ""
        assert run("evaluate y.csv b.csv --model m.safetensors").stderr == ""

    def test_the_model_keeps_the_names_and_shows_them(self):
        fit()
        assert bayeslista.load("m.safetensors").feature_names_in_.tolist() == NAMES
        assert "red, green, blue" in run("inspect m.safetensors").stdout

    def test_names_behind_a_mark_of_a_comment_count(self):
        np.savetxt("y.csv", Y, delimiter=",", header="red,green,blue")
        fit()
        assert bayeslista.load("m.safetensors").feature_names_in_.tolist() == NAMES
