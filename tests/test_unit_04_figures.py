"""What unit 04 shows beside its exercises: pictures with words, scripts in two columns."""

import pytest

from course_lib.figures.pictures import negotiation_picture, server_and_ring_picture
from course_lib.notebook import side_by_side
from course_lib.notebook.side_by_side import aligned


def test_pictures_tell_in_words_what_they_show():
    assert "5 arrows lead into the server, 5 out of it" in server_and_ring_picture(5).alt
    assert "c and b from 4 to 5.3 ms" in negotiation_picture().alt
    with pytest.raises(ValueError, match="not for 9"):
        server_and_ring_picture(9)


def test_every_line_of_both_scripts_is_shown_once_and_in_order():
    old, new = ["a", "b", "c", "d"], ["a", "x", "y", "c", "d", "z"]
    rows = list(aligned(old, new))
    assert [one for one, _, _ in rows if one] == old
    assert [other for _, other, _ in rows if other] == new
    assert all((one == other) != differs for one, other, differs in rows)


def test_what_differs_is_marked_and_code_is_no_markup(tmp_path, monkeypatch):
    shown = {}
    monkeypatch.setattr(side_by_side, "display", lambda bundle, raw: shown.update(bundle))
    left, right = tmp_path / "one.py", tmp_path / "many.py"
    left.write_text("same\nrate = 1\n")
    right.write_text("same\nrate = 1 if a<b else 2\n")
    side_by_side.side_by_side(left, right)
    assert shown["text/html"].count("▸") == 2
    assert "a&lt;b" in shown["text/html"]
    # A line that is wrapped goes on further in than it began.
    assert "padding-left:6ch;text-indent:-6ch" in shown["text/html"]
    assert "+rate = 1 if a<b else 2" in shown["text/plain"]
