"""Tables in files: what is written comes back, an error is named with its place, nothing half-written stays."""

import io
import os
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bayeslista.io import tables
from bayeslista.io.tables import write_table

TABLE = np.array([[1.5, -2.0, 0.0], [3.25, 1e-300, 4.0]])


def read_table(path, *options):
    return tables.read_table(path, *options).values


def read_names(path, *options):
    return tables.read_table(path, *options).names


def refused(path, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_table(path)
    assert str(path).partition(":")[0] in str(caught.value)


@pytest.fixture
def without_pyarrow(monkeypatch):
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)


class TestArrays:
    @pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "?", ">f8", ">f4", ">i4", "f2"])
    @pytest.mark.parametrize("order", ["C", "F"])
    def test_numbers_of_any_type_and_order_come_back(self, tmp_path, dtype, order):
        array = np.asarray([[0, 1, 0], [1, 1, 0]], dtype=dtype, order=order)
        np.save(tmp_path / "a.npy", array)
        np.savez(tmp_path / "a.npz", array)
        for name in ("a.npy", "a.npz"):
            found = read_table(tmp_path / name)
            np.testing.assert_array_equal(found, array)
            assert found.dtype.isnative
            assert (found.dtype == np.float32) == (array.dtype.kind == "f" and array.dtype.itemsize == 4)

    def test_a_long_header_of_the_second_version_is_read(self, tmp_path):
        with (tmp_path / "a.npy").open("wb") as stream:
            np.lib.format.write_array(stream, TABLE, version=(2, 0))
        np.testing.assert_array_equal(read_table(tmp_path / "a.npy"), TABLE)

    def test_an_array_of_one_dimension_stays_one(self, tmp_path):
        np.save(tmp_path / "a.npy", np.arange(3.0))
        assert read_table(tmp_path / "a.npy").shape == (3,)

    def test_a_npy_file_is_mapped_not_copied(self, tmp_path):
        np.save(tmp_path / "a.npy", TABLE)
        assert not read_table(tmp_path / "a.npy").flags.owndata

    def test_one_of_several_arrays_is_asked_for_by_name(self, tmp_path):
        path = tmp_path / "a.npz"
        np.savez_compressed(path, train=TABLE, test=TABLE + 1)
        np.testing.assert_array_equal(read_table(f"{path}:test"), TABLE + 1)
        refused(path, r"several arrays; name one as a\.npz:NAME\. There are: train, test\.")
        refused(f"{path}:other", r"no array 'other'. There are: train, test\.")

    def test_a_colon_in_the_name_of_a_file_is_no_name_of_an_array(self, tmp_path):
        np.savez(tmp_path / "a.npz:b.npz", TABLE)
        np.testing.assert_array_equal(read_table(tmp_path / "a.npz:b.npz"), TABLE)

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.array([["a"]]), "values of type <U1, not real numbers"),
            (np.array([[1j]]), "complex128, not real"),
            (np.array([{}]), "cannot be read.*objects"),
            (np.zeros((0, 3)), r"no numbers: its shape is \(0, 3\)"),
            (np.zeros((2, 2, 2)), r"shape \(2, 2, 2\); reshape"),
            (np.float64(3.0), r"shape \(\); reshape"),
            (np.array([[1.0, 2.0], [np.nan, 1.0]]), "has an empty cell or NaN in row 2, column 1, counted from 1"),
            (np.array([1.0, -np.inf]), "-inf in row 2, counted"),
            (np.zeros(1, [("β", float)]), "not real numbers"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
    def test_what_is_no_table_of_finite_numbers_is_refused(self, tmp_path, array, message):
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        refused(tmp_path / "a.npy", message)

    def test_the_first_wrong_number_is_found_in_a_long_table(self, tmp_path, monkeypatch):
        monkeypatch.setattr("bayeslista.io.tables._BLOCK_NUMBERS", 6)
        array = np.zeros((50, 3), np.float32)
        array[40, 2] = array[47, 0] = np.inf
        np.save(tmp_path / "a.npy", array)
        refused(tmp_path / "a.npy", "inf in row 41, column 3")

    @pytest.mark.parametrize("shape", ["(1000000000000, 3)", "(2, 1000000000000)", "(3, 3)", "(2, -3)", "(2, 2)"])
    def test_a_shape_that_the_file_cannot_hold_is_refused(self, tmp_path, shape):
        head = np.lib.format.header_data_from_array_1_0(TABLE)
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, {**head, "shape": eval(shape)})
        (tmp_path / "a.npy").write_bytes(stream.getvalue() + TABLE.tobytes())
        refused(tmp_path / "a.npy", "damaged")
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("x.npy", stream.getvalue() + TABLE.tobytes())
        refused(tmp_path / "a.npz", "damaged")

    def test_an_archive_without_arrays_is_refused(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
            archive.writestr("note.txt", b"")
        refused(tmp_path / "a.npz", "holds no arrays")


class TestText:
    @pytest.mark.parametrize(
        "text",
        [
            "1.5,-2,0\n3.25,1e-300,4\n",
            "a,b,c\n1.5,-2,0\n3.25,1e-300,4",
            '"a","b","c"\r\n"1.5",-2,0\r\n3.25,1e-300,4\r\n',
            "\ufeff1.5;-2;0\n3.25;1e-300;4\n",
            "\n\n1.5\t-2\t0\n\n3.25\t1e-300\t4\n\n",
            "# written by a program\n1.5 -2  0\n3.25 1e-300 4\n",
            "0,1,2\n1.5,-2,0\n3.25,1e-300,4\n",
            "a , b,c\n 1.5, -2 ,0\n3.25,1e-300,4\n",
            "# sensors; today, and more\n1.5\t-2\t0\n3.25\t1e-300\t4\n",
            '"left; or not",b,c\n1.5,-2,0\n3.25,1e-300,4\n',
        ],
    )
    def test_a_header_and_the_separator_are_detected(self, tmp_path, text):
        (tmp_path / "a.csv").write_text(text, encoding="utf-8", newline="")
        np.testing.assert_array_equal(read_table(tmp_path / "a.csv"), TABLE)

    def test_one_column_is_two_dimensional(self, tmp_path):
        (tmp_path / "a.CSV").write_text("x\n1\n2\n")
        assert read_table(tmp_path / "a.CSV").tolist() == [[1.0], [2.0]]

    def test_a_first_row_of_zero_and_one_is_data(self, tmp_path):
        (tmp_path / "a.csv").write_text("0,1\n1,0\n")
        assert read_table(tmp_path / "a.csv").tolist() == [[0.0, 1.0], [1.0, 0.0]]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("a,b\n1,2\n3,x\n", r"holds 'x' in row 2, column 2 \('b'\), counted from 1, which is not a number"),
            ("1,2\n3,\n", "an empty cell or NaN in row 2, column 2, counted"),
            ("1,two\n3,4\n", "holds 'two' in row 1, column 2"),
            ("1,2\n\n3,4,5\n", "has 3 cells in line 3 and 2 in those before it"),
            ("a,b\n\n1,2\n\n3,4,5\n", "has 3 cells in line 5 and 2 in those before it"),
            ("1,2\n3\n", "an empty cell or NaN in row 2, column 2"),
            ("a,b,c\n1,2\n3,4\n", "has 3 names in its header and 2 numbers in a row"),
            ("a,b\n", "no numbers: there are no rows below its header"),
            ("\n\n", "all of its lines are blank"),
            ("a,b\n1,2\nnan,3\n", r"NaN in row 2, column 1 \('a'\), counted from 1\."),
            ("\na,b\n\n1,2\n\n3,NA\n", r"NaN in row 2, column 2 \('b'\), counted from 1\."),
            ("1,2\n1e999,3\n", r"has inf in row 2, column 1, counted from 1\."),
            ("1 2\n  \n3 inf\n", r"has inf in row 2, column 2, counted from 1\."),
            (f"1\n{'x' * 10**6}\n", "'x{40}'"),
            ("1,2\n1_0,2\n", "1_0"),
            ('1,2\n"3,4\n', "cannot be read"),
            ("1,5;2,5\n3,5;2,5\n", r"'1,5' in row 1, column 1, .* Write decimals with a point"),
            ("a;b\n1,5;2\n", r"'1,5' in row 1, column 1 \('a'\).* Write decimals with a point"),
            ("a\tb\n3\t-1.000,5\n", r"'-1.000,5' in row 1, column 2.* Write decimals with a point"),
        ],
    )
    def test_the_first_error_is_named_with_row_and_column(self, tmp_path, text, message):
        (tmp_path / "a.csv").write_text(text)
        refused(tmp_path / "a.csv", message)

    @pytest.mark.parametrize(
        ("text", "names"),
        [
            ('"red, or so";"a ""green"" one"\n1;2\n', ("red, or so", 'a "green" one')),
            ("\ufeff red , green \n1,2\n", ("red", "green")),
            ("red\tgreen\n1\t2\n", ("red", "green")),
            ("red light\n1\n2\n", ("red light",)),
            ("# red,green\n1,2\n", ("red", "green")),
            ("# made by me\n1 2 3\n", ()),
            ("# by a program, today\n1,2\n", ()),
            ("1,2,3\n4,5,6\n", ()),
        ],
    )
    def test_names_are_those_of_the_header(self, tmp_path, text, names):
        (tmp_path / "a.csv").write_text(text, encoding="utf-8")
        assert read_names(tmp_path / "a.csv") == names
        assert len(read_table(tmp_path / "a.csv")) == text.count("\n") - 1

    def test_known_names_are_a_header_even_if_they_are_numbers(self, tmp_path):
        (tmp_path / "a.csv").write_text("400,410\n1,2\n")
        assert len(read_table(tmp_path / "a.csv")) == 2
        for known in (("400", "410"), ("410", "400")):
            assert read_names(tmp_path / "a.csv", "auto", known) == ("400", "410")
        assert read_names(tmp_path / "a.csv", "no", ("400", "410")) == ()

    @pytest.mark.parametrize("content", [b"\x89PNG\r\n\x1a\n", b"1,2\n3,4\n" * 5000 + b"\xff\n"])
    def test_what_is_no_text_is_refused(self, tmp_path, content):
        (tmp_path / "a.csv").write_bytes(content)
        refused(tmp_path / "a.csv", "not text in UTF-8")

    @given(hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2), elements=st.floats(allow_nan=False)))
    def test_every_number_comes_back_to_the_last_bit(self, tmp_path_factory, array):
        array = np.clip(array, -1e308, 1e308)
        path = tmp_path_factory.getbasetemp() / "numbers.csv"
        write_table(path, [{"x": array}])
        assert read_table(path).tobytes() == array.tobytes()


class TestParquet:
    def test_frames_come_back_without_their_index(self, tmp_path):
        frame = pd.DataFrame({"a": [1.5, 2.5], "b": [True, False], "c": [3, 4]}, index=[7, 9])
        frame.to_parquet(tmp_path / "a.parquet")
        assert read_table(tmp_path / "a.parquet").tolist() == [[1.5, 1.0, 3.0], [2.5, 0.0, 4.0]]

    def test_single_precision_stays(self, tmp_path):
        pd.DataFrame(TABLE.astype(np.float32)).rename(columns=str).to_parquet(tmp_path / "a.parquet")
        assert read_table(tmp_path / "a.parquet").dtype == np.float32

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            ({"a": [1.0], "b": ["x"]}, r"(str|object) in column 'b', not real numbers"),
            ({"a": [1.0, None]}, r"NaN in row 2, column 1 \('a'\), counted from 1\."),
            ({"a": [[1.0]]}, "object in column 'a'"),
            ({}, "no numbers"),
        ],
    )
    def test_other_columns_are_refused_by_name(self, tmp_path, columns, message):
        pd.DataFrame(columns).to_parquet(tmp_path / "a.parquet")
        refused(tmp_path / "a.parquet", message)

    def test_a_changed_number_in_a_file_of_ours_is_noticed(self, tmp_path):
        path = tmp_path / "a.parquet"
        write_table(path, [{"x": np.linspace(0.0, 1.0, 500)}])
        content = bytearray(path.read_bytes())
        content[len(content) // 4] ^= 1
        path.write_bytes(content)
        refused(path, "damaged")

    def test_without_pyarrow_it_is_said_how_to_get_it(self, tmp_path, without_pyarrow):
        (tmp_path / "a.parquet").write_bytes(b"PAR1")
        for use in (read_table, lambda path: write_table(path, [])):
            with pytest.raises(ImportError, match=r'pip install "bayeslista\[tables\]"'):
                use(tmp_path / "a.parquet")


class TestFiles:
    def test_other_kinds_of_files_are_refused(self, tmp_path):
        refused(tmp_path / "a.mat", "ends with .npy, .npz, .csv or .parquet")
        with pytest.raises(ValueError, match=r"has to end with \.npz, \.csv or \.parquet"):
            write_table(tmp_path / "a.npy", [])

    @pytest.mark.parametrize("kind", ["npy", "npz", "csv", "parquet"])
    def test_missing_empty_and_foreign_files_are_told_apart(self, tmp_path, kind):
        path = tmp_path / f"a.{kind}"
        with pytest.raises(FileNotFoundError):
            read_table(path)
        path.touch()
        refused(path, "is empty")
        path.write_bytes(bytes(range(256)))
        refused(path, f"not a .{kind} file|not text")
        path.unlink()
        path.mkdir()
        with pytest.raises(IsADirectoryError):
            read_table(path)

    def test_a_disk_that_fails_is_not_taken_for_a_damaged_file(self, tmp_path, monkeypatch):
        def fail(*_, **__):
            raise OSError(5, "Input/output error")

        (tmp_path / "a.csv").write_text("1,2\n")
        monkeypatch.setattr(pd, "read_csv", fail)
        with pytest.raises(OSError, match="Input/output"):
            read_table(tmp_path / "a.csv")


class TestWriting:
    @pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
    def test_batches_become_one_table(self, tmp_path, kind):
        path = tmp_path / f"out.{kind}"
        parts = (TABLE[:1], TABLE[1:])
        write_table(path, ({"mean": np.asfortranarray(p), "std": p[:, 0].astype(np.float32)} for p in parts))
        assert os.listdir(tmp_path) == [path.name]
        if kind == "npz":
            np.testing.assert_array_equal(read_table(f"{path}:mean"), TABLE)
            assert read_table(f"{path}:std").dtype == np.float32
            with np.load(path) as found:
                np.testing.assert_array_equal(found["std"], TABLE[:, 0].astype(np.float32))
        else:
            np.testing.assert_array_equal(read_table(path), np.c_[TABLE, TABLE[:, 0]])
            frame = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
            assert list(frame) == ["mean_0", "mean_1", "mean_2", "std_0"]

    @pytest.mark.parametrize("kind", ["csv", "parquet"])
    def test_components_have_the_names_that_they_are_given(self, tmp_path, kind):
        path, names = tmp_path / f"out.{kind}", ["left", 'the "big" one, or none', "é <b>"]
        write_table(path, [{"mean": TABLE, "std": TABLE}], names)
        frame = pd.read_csv(path) if kind == "csv" else pd.read_parquet(path)
        assert list(frame) == [f"{part}_{name}" for part in ("mean", "std") for name in names]
        np.testing.assert_array_equal(frame.to_numpy()[:, :3], TABLE)

    def test_infinite_ends_of_intervals_can_be_written(self, tmp_path):
        write_table(tmp_path / "out.csv", [{"low": np.array([-np.inf]), "high": np.array([np.inf])}])
        assert (tmp_path / "out.csv").read_text() == "low_0,high_0\n-inf,inf\n"

    @pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
    def test_an_interrupt_leaves_the_old_file_and_nothing_else(self, tmp_path, kind):
        path = tmp_path / f"out.{kind}"
        path.write_text("old")

        def interrupted():
            yield {"mean": TABLE}
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_table(path, interrupted())
        assert os.listdir(tmp_path) == [path.name]
        assert path.read_text() == "old"

    @pytest.mark.parametrize("kind", ["npz", "csv", "parquet"])
    def test_the_same_numbers_make_the_same_file(self, tmp_path, kind):
        for name in ("a", "b"):
            write_table(tmp_path / f"{name}.{kind}", [{"mean": TABLE}])
        assert (tmp_path / f"a.{kind}").read_bytes() == (tmp_path / f"b.{kind}").read_bytes()
