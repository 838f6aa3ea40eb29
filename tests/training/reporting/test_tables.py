from lathe.training.reporting.tables import Table

ROWS = [{"name": "one", "n": 1200, "gain": 0.5}, {"name": "two", "n": None, "gain": float("nan")}, {"name": "a,b"}]
FORMATS = {"n": ",", "gain": "+.2f"}


def test_to_text_aligns_the_first_column_left_and_the_others_right():
    rows = [["encoder", "‖μ‖", "R2"], ["e5", "0.86", "+0.62 ±0.10"], ["a longer name", "–", "–0.1"]]
    assert Table.from_rows(rows).to_text().split("\n") == [
        "encoder         ‖μ‖           R2",
        "e5             0.86  +0.62 ±0.10",
        "a longer name     –         –0.1",
    ]


def test_from_records_formats_columns_and_shows_missing_values_as_a_dash():
    table = Table.from_records(ROWS, FORMATS)
    assert table.cells == [["name", "n", "gain"], ["one", "1,200", "+0.50"], ["two", "–", "–"], ["a,b", "–", "–"]]


def test_from_records_takes_a_function_as_format_and_leaves_text_unformatted():
    rows = [{"share": 0.25}, {"share": "all"}]
    assert Table.from_records(rows, default=lambda share: f"{share:.0%}").cells == [["share"], ["25%"], ["all"]]


def test_to_csv_writes_unformatted_values_and_keeps_integers():
    table = Table.from_records(ROWS, FORMATS)
    assert table.to_csv() == 'name,n,gain\none,1200,0.5\ntwo,,\n"a,b",,\n'
    assert table.to_csv(["n"]) == 'n\n1200\n""\n""\n'
