"""What makes a figure legible, for the tests of all figures."""

import itertools

from matplotlib.text import Text


def drawn_texts(figure):
    """Every piece of text that is drawn, with its box in pixels."""
    figure.draw_without_rendering()
    hidden = {id(label) for axes in figure.axes for label in _hidden_labels(axes)}
    found = [
        t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and id(t) not in hidden
    ]
    return [(t, t.get_window_extent()) for t in found]


def assert_legible(figure):
    """No text is smaller than 9 pt or cut off by the figure's edge."""
    width, height = figure.bbox.width, figure.bbox.height
    for text, box in drawn_texts(figure):
        assert text.get_fontsize() >= 9, text
        assert box.x0 >= -1, text
        assert box.y0 >= -1, text
        assert box.x1 <= width + 1, text
        assert box.y1 <= height + 1, text


def assert_apart(texts):
    """No two of the texts, given with their boxes, touch."""
    for (one, a), (other, b) in itertools.combinations(texts, 2):
        touch = a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1
        assert not touch, (one, other)


def _hidden_labels(axes):
    """Labels of ticks outside of the view, and of axes that are switched off."""
    for axis, place in ((axes.xaxis, 0), (axes.yaxis, 1)):
        low, high = sorted(axis.get_view_interval())
        for label in (*axis.get_ticklabels(), *axis.get_ticklabels(minor=True)):
            if not axes.axison or not low <= label.get_position()[place] <= high:
                yield label
