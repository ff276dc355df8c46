"""Names of columns are users' words: these, in this order, whatever holds the values."""

from __future__ import annotations

from collbench.records import stats
from collbench.records.columns import BOUNDING, COLUMNS
from collbench.show import words

FRAME = """
run tag started world stage round order collective implementation backend algorithm n nbytes
size count dtype op root in_place mode env splits background align groups group of status note
unfit ungated flags cycles cycles_left_out median lo hi algbw busbw wirebw wire moves samples
n_eff min mean max mad p95 p99 t_glob host device skew arrival control absorbed clock_error
overhead severe_outliers late_rank late_share slow_rank modes mode_share preempted lateness
chose checked wrong sync rotation cache call_path_ns
"""
TABLE = """
collective backend n nbytes algorithm dtype op root in_place mode env splits align cycle groups
group of arrival step background implementation count size order status note wrong checked
rotation cache sync call_path_ns samples n_eff median lo hi min mean max mad p95 p99 t_glob skew
overhead algbw busbw severe_outliers late_rank modes flags gateable lateness host device chose
wirebw clock_error slow_rank control sensitive absorbed mode_share in_stretches wire carried
moves late_share
"""


def test_a_frame_has_these_columns_in_this_order() -> None:
    assert [column.name for column in COLUMNS] == FRAME.split(), "FRAME, above"


def test_csv_and_json_have_these_columns_in_this_order() -> None:
    assert list(words.COLUMNS) == TABLE.split(), "TABLE, above"


def test_percentiles_say_how_many_samples_bound_them() -> None:
    for quantile, name in ((0.95, "p95"), (0.99, "p99")):
        assert stats.interval_ranks(BOUNDING[name], quantile)
        assert not stats.interval_ranks(BOUNDING[name] - 1, quantile)
