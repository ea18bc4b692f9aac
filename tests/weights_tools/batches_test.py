import numpy as np

from weights_tools import batches

BOS, NEWLINE = 1, 3
#         0    1   2  3  4  5   6   7    8   9  10 11 12 13 14   15
STREAM = np.array([BOS, 10, 11, 3, 3, 12, 13, BOS, 14, 3, 3, 3, 15, 3, 16, 17], dtype=np.int32)


def test_paragraphs_start_after_a_blank_line_or_bos():
    assert batches.paragraph_starts(STREAM, NEWLINE, BOS).tolist() == [1, 5, 8, 12]


def rows_of(count, segment):
    return batches.Rows(STREAM, count, segment, NEWLINE, BOS, np.random.default_rng(0))


def test_segments_overlap_by_the_one_token_between_input_and_target():
    rows = rows_of(2, 5)
    rows.at = np.array([0, 8])
    first = rows.next(np.array([False, False]))
    second = rows.next(np.array([False, False]))
    assert first.tolist() == [STREAM[0:6].tolist(), STREAM[8:14].tolist()]
    assert np.array_equal(second[:, 0], first[:, -1])
    assert second[1].tolist() == [*STREAM[13:16].tolist(), *STREAM[0:3].tolist()]  # the ring closes


def test_a_fresh_row_begins_with_bos_and_a_paragraph():
    rows = rows_of(3, 2)
    rows.at = np.array([2, 12, 4])
    ids = rows.next(np.array([True, True, False]))
    assert ids.tolist() == [[BOS, 12, 13], [BOS, 10, 11], [3, 12, 13]]
    assert rows.next(np.array([False, False, False]))[0].tolist() == [13, BOS, 14]


def test_rows_are_spread_evenly():
    rows = rows_of(4, 2)
    assert np.diff(rows.at).tolist() == [4, 4, 4]
