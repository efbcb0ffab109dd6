"""Tables in the pages of the findings."""

from findings.tables import markdown, write_tables


def test_tables_are_written_between_their_markers(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n\n<!-- one -->\n\nold\n\n<!-- end of one -->\n\nafter\n")
    write_tables(page, {"one": markdown(["name", "value"], [["a", "1"]])})
    expected = "before\n\n<!-- one -->\n\n| name | value |\n| --- | ---: |\n| a | 1 |\n\n"
    assert page.read_text() == expected + "<!-- end of one -->\n\nafter\n"
