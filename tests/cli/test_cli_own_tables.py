"""Tables of one's own on the command line: names of columns, headers of numbers, the index of pandas."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from progress_lines import without_progress
from typer.testing import CliRunner

import bayeslista
from bayeslista.cli import app
from bayeslista.io.tables import read_table

runner = CliRunner()
NAMES = ["red", "green", "blue"]
rng = np.random.default_rng(0)
Y, B = rng.standard_normal((12, 3)), rng.standard_normal((12, 4))
PREDICT = "predict {} --model m.safetensors --out out.npz"
FIT_CODES = "fit {} b.csv --estimator ista --model m.safetensors"


def run(words, code=0):
    done = without_progress(runner.invoke(app, words.split()))
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
            assert "the columns are in another order. Reorder them to 'red', 'green', 'blue'." in message
        assert not Path("out.npz").exists()

    def test_other_columns_are_refused(self):
        fit()
        Path("other.csv").write_text("red,green,infrared\n1,2,3\n")
        message = run(PREDICT.format("other.csv"), code=1).stderr
        assert (
            "'infrared' in column 3, where the model was fitted to 'blue'. Pass the columns 'red', 'green', 'blue'"
            in message
        )

    def test_a_column_too_many_is_named(self):
        fit()
        Path("other.csv").write_text("id,red,green,blue\n7,1,2,3\n")
        message = run(PREDICT.format("other.csv"), code=1).stderr
        assert "other.csv has 4 columns" in message
        assert "The first column that the fit did not have is 'id'." in message

    @pytest.mark.parametrize("header", ["", "0,1,2\n", "# by a program, today\n"])
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


class TestNamesOfCodes:
    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_predictions_have_them(self, kind):
        pd.read_csv("b.csv").to_parquet("b.parquet")
        run(f"fit y.csv b.{kind} --estimator ista --layers 2 --model m.safetensors")
        assert list(bayeslista.load("m.safetensors").component_names_) == list("abcd")
        assert "a, b, c, d" in run("inspect m.safetensors").stdout
        run("predict y.csv --model m.safetensors --out out.csv")
        assert list(pd.read_csv("out.csv")) == ["mean_a", "mean_b", "mean_c", "mean_d"]

    def test_distributions_have_them_too(self):
        options = "--mode fast --layers 2 --training none --model m.safetensors"
        run(f"fit y.csv b.csv {options}")
        run("predict y.csv --model m.safetensors --out out.parquet")
        parts = ["mean", "std", "prob_active", "low", "high"]
        assert list(pd.read_parquet("out.parquet")) == [f"{part}_{name}" for part in parts for name in "abcd"]

    def test_codes_without_names_are_counted(self):
        np.save("b.npy", B)
        Path("b.csv").write_text("a,b,a,c\n" + "\n".join(",".join(map(repr, row)) for row in B.tolist()))
        for table in ("b.npy", "b.csv"):
            run(f"fit y.csv {table} --estimator ista --layers 2 --model m.safetensors")
            assert not hasattr(bayeslista.load("m.safetensors"), "component_names_")
            run("predict y.csv --model m.safetensors --out out.csv")
            assert list(pd.read_csv("out.csv")) == ["mean_0", "mean_1", "mean_2", "mean_3"]

    @pytest.mark.parametrize("with_codes", [True, False])
    def test_the_columns_of_a_design_matrix_name_the_coefficients(self, with_codes):
        pd.DataFrame(B[:3], columns=list("stuv")).to_csv("x.csv", index=False)
        np.save("b.npy", B)
        options = "--design-matrix x.csv --mode fast --layers 2 --training none --model m.safetensors"
        run(f"fit y.csv {'b.npy' if with_codes else ''} {options}")
        assert list(bayeslista.load("m.safetensors").component_names_) == list("stuv")
        run("predict y.csv --model m.safetensors --out out.csv")
        assert list(pd.read_csv("out.csv"))[:4] == ["mean_s", "mean_t", "mean_u", "mean_v"]

    def test_a_design_matrix_in_another_order_than_the_codes_is_refused(self):
        pd.DataFrame(B[:3], columns=list("abdc")).to_csv("x.csv", index=False)
        message = run(FIT_CODES.format("y.csv") + " --design-matrix x.csv", code=1).stderr
        assert "b.csv has 'c' in column 3, where x.csv has 'd': the columns are in another order" in message
        pd.DataFrame(B[:3], columns=list("stuv")).to_csv("x.csv", index=False)
        run(FIT_CODES.format("y.csv") + " --design-matrix x.csv")
        assert list(bayeslista.load("m.safetensors").component_names_) == list("abcd")

    @pytest.mark.parametrize("command", ["evaluate", "calibrate", "report --out page.html"])
    def test_the_same_in_another_order_are_refused(self, command):
        run("fit y.csv b.csv --mode fast --layers 2 --training none --model m.safetensors")
        pd.read_csv("b.csv")[list("abdc")].to_csv("other.csv", index=False)
        name, *options = command.split()
        message = run(f"{name} y.csv other.csv --model m.safetensors {' '.join(options)}", code=1).stderr
        assert "other.csv has 'd' in column 3, where the model was fitted to 'c'" in message
        assert "Reorder them to 'a', 'b', 'c', 'd'." in message


class TestHeadersOfNumbers:
    @pytest.mark.parametrize("first", [0, 1])
    def test_columns_that_are_counted_are_no_signal_and_no_names(self, first):
        pd.DataFrame(Y, columns=range(first, first + 3)).to_csv("y.csv", index=False)
        assert fit().stderr == ""
        assert not hasattr(bayeslista.load("m.safetensors"), "feature_names_in_")

    def test_other_numbers_can_be_declared_a_header_once(self):
        Path("y.csv").write_text("10.0,11.0,12.5,20\n" + "3,1,2,0\n" * 12)
        Path("x.csv").write_text("10.0,11.0,12.5,20\n3,1,2,0\n")
        fit("y.csv", "--header yes")
        assert bayeslista.load("m.safetensors").feature_names_in_.tolist() == ["10.0", "11.0", "12.5", "20"]
        for option, n_rows in (("", 1), (" --header yes", 1), (" --header no", 2)):
            assert run(PREDICT.format("x.csv") + option).stderr == ""
            assert len(predicted()) == n_rows
        Path("x.csv").write_text("10.0,12.5,11.0,20\n3,1,2,0\n")
        assert "the columns are in another order" in run(PREDICT.format("x.csv"), code=1).stderr

    def test_other_numbers_are_doubted_where_the_model_has_no_names(self):
        Path("y.csv").write_text("10.0,11.0,12.5,20\n" + "3,1,2,0\n" * 11)
        message = fit("y.csv").stderr
        assert message.startswith("Warning: y.csv was read without a header")
        assert "pass --header yes" in message

    @pytest.mark.parametrize("text", ["1,2,3,4.5\n1,2,3,5\n", "4,3,2,1\n1,0,1,0\n", "1,2,2,3\n1,0,1,0\n"])
    def test_signals_are_not_doubted(self, text):
        Path("x.csv").write_text(text)
        assert len(read_table("x.csv").values) == 2

    def test_a_first_line_that_counts_can_be_declared_a_signal(self):
        Path("x.csv").write_text("1,2,3\n4,5,6\n")
        assert len(read_table("x.csv").values) == 1
        assert len(read_table("x.csv", "no").values) == 2

    def test_another_word_is_refused(self):
        assert "--header" in runner.invoke(app, [*PREDICT.format("y.csv").split(), "--header", "maybe"]).stderr


class TestIndexOfPandas:
    @pytest.mark.parametrize("columns", [NAMES, [0, 1, 2], [1.5, 2.5, 4.5]])
    def test_it_is_left_out_with_a_word(self, columns):
        pd.DataFrame(Y, columns=columns).to_csv("y.csv")
        note = "Warning: y.csv begins with the index that pandas writes, which is left out; write with index=False.\n"
        assert fit().stderr == note
        model = bayeslista.load("m.safetensors")
        assert model.n_features_in_ == 3
        assert list(getattr(model, "feature_names_in_", [])) == ([] if columns[0] == 0 else list(map(str, columns)))

    def test_it_is_left_out_of_codes_and_of_what_pandas_read_again(self):
        pd.DataFrame(B).to_csv("b.csv")
        pd.read_csv("b.csv").to_parquet("b.parquet")
        for file in ("b.csv", "b.parquet"):
            with pytest.warns(UserWarning, match="index that pandas writes, which is left out"):
                np.testing.assert_array_equal(read_table(file).values, B)

    def test_one_that_does_not_count_is_refused(self):
        pd.DataFrame(Y, columns=NAMES, index=range(5, 17)).to_csv("y.csv")
        message = run(FIT_CODES.format("y.csv"), code=1).stderr
        assert "as an index of pandas; write with index=False" in message

    def test_a_missing_number_is_not_taken_for_it(self):
        Path("x.csv").write_text(",5,4\n1,2,3\n")
        with pytest.raises(ValueError, match="an empty cell or NaN in row 1, column 1"):
            read_table("x.csv")
