"""Figures have words, sliders change pictures, curves outlive their notebook, batch output stays plain."""

import html.parser
import json
import math
import os
import re
import signal
import subprocess
import sys
from types import SimpleNamespace

import nbformat
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.figure import Figure
from nbclient import NotebookClient

from course_lib.figures import pictures, style
from course_lib.figures.pictures.data_parallel import schedule
from course_lib.figures.plots import bar_figure, line_figure
from course_lib.figures.style import (
    COLOURS,
    Drawing,
    figure_html,
    figure_png,
    ink_on,
    new_figure,
    rank_colour,
    show,
)
from course_lib.home import course_home
from course_lib.launch import launch
from course_lib.launch.failures import Deadlock
from course_lib.notebook.curves import LiveCurves
from course_lib.notebook.display_target import DisplayTarget, display_target
from course_lib.notebook.history import read_history
from course_lib.notebook.reporting import Progress, TerminalReporter, progress
from course_lib.notebook.widgets import Exploration, Slider, explore
from course_lib.runtime.communication.errors import PendingCall
from tests.legible import assert_apart, assert_legible, drawn_texts
from workbook.run_notebook import OwnSocketsManager


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home for results of each test's own."""
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def shell():
    """A real IPython shell whose displays are kept: `shell.display_pub.outputs`."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.display_pub = CapturingDisplayPublisher()
    yield shell
    InteractiveShell.clear_instance()


@pytest.fixture
def live(shell):
    """The shell as a kernel with a person in front of it."""
    shell.kernel = SimpleNamespace(_allow_stdin=True)
    return shell


@pytest.fixture
def batch(shell):
    """The shell as a kernel that papermill runs."""
    shell.kernel = SimpleNamespace(_allow_stdin=False)
    return shell


class Images(html.parser.HTMLParser):
    """The alternative texts of a page's images."""

    def __init__(self, page):
        super().__init__()
        self.alts = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            self.alts.append(dict(attrs)["alt"])


def tiny(alt="A line.", height=2.0):
    figure, axes = new_figure(alt=alt, height=height)
    axes.plot([0, 1], [0, 1])
    return figure


# --- The look


def test_a_figure_without_words_is_refused():
    with pytest.raises(ValueError, match="alternative text"):
        new_figure(alt=" ")
    with pytest.raises(ValueError, match="alternative text"):
        show(Figure())


def test_a_name_keeps_its_look_over_figures():
    # Invariant: what an order names looks the same in a figure where others are left out.
    def colours(*names):
        lines = {name: ([1, 2], [3, 4]) for name in names}
        axes = line_figure(lines, x="x", y="y", alt="lines", order=["tree", "ring", "mine"]).axes[0]
        return {line.get_label(): line.get_color() for line in axes.get_lines()}

    every = colours("tree", "ring", "mine", "another")
    assert len(set(every.values())) == 4
    assert colours("another", "ring").items() <= every.items()


def test_a_drawing_shows_itself_once_with_its_words(shell):
    shell.run_cell("from tests.test_widgets import tiny\ntiny('Tom & \"Jerry\" < 3')")
    (output,) = shell.display_pub.outputs
    assert Images(output["data"]["text/html"]).alts == ['Tom & "Jerry" < 3']
    assert output["data"]["text/plain"] == '[figure] Tom & "Jerry" < 3'
    assert set(output["data"]) == {"text/html", "text/plain"}, "an image/png would have no words"


def test_show_takes_a_pyplot_figure_and_closes_it(shell):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    figure, _ = pyplot.subplots()
    show(figure, alt="An empty plot.")
    assert not pyplot.get_fignums()
    assert Images(shell.display_pub.outputs[0]["data"]["text/html"]).alts == ["An empty plot."]


def test_outside_of_a_notebook_the_words_are_printed(capsys):
    show(tiny("A line from 0 to 1."))
    assert capsys.readouterr().out == "[figure] A line from 0 to 1.\n"


def test_the_ground_is_opaque_and_white():
    # A transparent figure is black on black in dark mode.
    image = pytest.importorskip("PIL.Image")
    picture = image.open(__import__("io").BytesIO(figure_png(tiny()))).convert("RGBA")
    assert picture.getpixel((0, 0)) == (255, 255, 255, 255)
    assert picture.getchannel("A").getextrema() == (255, 255)


def test_what_a_cell_adds_to_a_figure_has_the_shared_look():
    # Invariant: a line, a title, a legend look the same whether or not a cell draws them `with look():`.
    def drawn():
        figure, (left, right) = new_figure(alt="Two panels.", columns=2)
        left.plot([0, 1], [0, 1], "o-", label="a line")
        left.set(title="a title")
        legends = left.legend(), figure.legend(loc="outside lower center")
        right.plot([0, 1], [1, 0])
        return figure_png(figure), [legend.get_texts()[0].get_fontsize() for legend in legends]

    with style.look():
        within = drawn()
    assert drawn() == within
    assert within[1] == [9, 9]


def test_lines_differ_by_more_than_colour():
    series = {f"line {k}": ([0, 1], [0, k]) for k in range(7)}
    figure = line_figure(series, x="step", y="loss", alt="Seven lines.")
    looks = {(str(line.get_linestyle()), line.get_marker()) for line in figure.axes[0].lines}
    dashes = {str(line._unscaled_dash_pattern) for line in figure.axes[0].lines}
    assert len(looks) == len(series)
    assert len(dashes) == len(series)
    assert_legible(figure)


def test_bars_show_their_values_and_names():
    figure = bar_figure({"a": [1, 2, 3], "b": [3, 2, 1]}, names=["x", "y", "z"], y="seconds", alt="Bars.")
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [1, 2, 3, 3, 2, 1]
    assert len({bar.get_hatch() for bar in axes.patches}) == 2
    assert [label.get_text() for label in axes.get_xticklabels()] == ["x", "y", "z"]
    many = bar_figure({"a": range(200)}, names=[f"rank {k}" for k in range(200)], y="s", alt="Many bars.")
    many.draw_without_rendering()
    assert_apart([(label, label.get_window_extent()) for label in many.axes[0].get_xticklabels()])


def test_ink_can_be_read_on_every_colour():
    def luminance(colour):
        channels = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for colour in COLOURS.values():
        light, dark = sorted((luminance(colour), {"black": 0.0, "white": 1.0}[ink_on(colour)]), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, colour


def test_eight_ranks_have_eight_colours():
    assert len({rank_colour(rank) for rank in range(8)}) == 8
    assert rank_colour(8) == rank_colour(0)


def test_look_leaves_matplotlibs_settings_as_they_were():
    import matplotlib as mpl

    before = dict(mpl.rcParams)
    figure_png(tiny())
    assert dict(mpl.rcParams) == before
    assert style.WIDTH == 9.0


# --- Pictures


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("name", list(pictures.COLLECTIVES))
def test_the_picture_of_a_collective_is_legible(name, ranks):
    figure = pictures.collective_picture(name, ranks)
    assert_legible(figure)
    assert_apart(drawn_texts(figure))
    assert figure.alt.startswith(f"{name}: ")


def test_collectives_side_by_side_are_legible():
    figure = pictures.collectives_picture(("broadcast", "reduce", "all_reduce"), ranks=3)
    assert_legible(figure)
    assert_apart(drawn_texts(figure))
    assert all(f"{name}: " in figure.alt for name in ("broadcast", "reduce", "all_reduce"))


def test_ticks_at_the_points_are_plain_numbers():
    # Who reads a batch size off the axis finds the sizes that were measured.
    lines = {"training": ([1, 32, 1024], [200, 3000, 5500])}
    figure = line_figure(lines, x="x", y="y", alt="a", log_x=True, log_y=True, at_points=True)
    figure_png(figure)
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "32", "1,024"]
    assert {"200", "1,000", "5,000"} <= {label.get_text() for label in axes.get_yticklabels()}


@pytest.mark.parametrize("name", list(pictures.COLLECTIVES))
def test_a_collective_invents_no_data(name):
    # What is there afterwards was there before: every origin and part, summed or not.
    def pieces(state):
        return {(o, box.part) for row in state for box in row if box is not None for o in box.origins}

    for ranks in (2, 5, 8):
        collective = pictures.COLLECTIVES[name]
        before, after = collective.before(ranks), collective.after(ranks)
        assert len(before) == len(after) == ranks
        assert pieces(after) <= pieces(before)
        assert pieces(after) == pieces(before) or name == "point_to_point"


def test_pictures_agree_with_torch():
    # The picture of a collective shows what torch.distributed does: each rank's tensor is its rank.
    torch = pytest.importorskip("torch")
    dist = pytest.importorskip("torch.distributed")

    def gathered():
        rank, size = dist.get_rank(), dist.get_world_size()
        everything = [torch.empty(1) for _ in range(size)]
        dist.all_gather(everything, torch.tensor([float(rank)]))
        parts = torch.tensor([10.0 * rank + part for part in range(size)])
        exchanged = torch.empty(size)
        dist.all_to_all_single(exchanged, parts)
        return [int(t) for t in everything], [int(t) for t in exchanged]

    results = launch(gathered, ranks=4).results
    for rank, (everything, exchanged) in enumerate(results):
        row = pictures.COLLECTIVES["all_gather"].after(4)[rank]
        assert everything == [box.origins[0] for box in row]
        row = pictures.COLLECTIVES["all_to_all"].after(4)[rank]
        assert exchanged == [10 * box.origins[0] + box.part for box in row]


def test_pictures_refuse_what_they_have_no_room_for():
    with pytest.raises(ValueError, match="all_reduce"):
        pictures.collective_picture("allreduce")
    with pytest.raises(ValueError, match="2 to 8"):
        pictures.collective_picture("all_reduce", 9)
    with pytest.raises(ValueError, match="2 to 24"):
        pictures.ring_picture(1)
    with pytest.raises(ValueError, match="2 to 16"):
        pictures.tree_picture(17)
    with pytest.raises(ValueError, match="64 devices"):
        pictures.layout_picture(9, 8)
    with pytest.raises(ValueError, match="1 to 8 workers"):
        pictures.weighted_average_picture(())
    with pytest.raises(ValueError, match="both times"):
        pictures.bucket_picture([1.0], [])
    with pytest.raises(ValueError, match="2 or 4 ranks"):
        pictures.cut_picture(3)
    with pytest.raises(ValueError, match="mlp, attention"):
        pictures.branches_picture("norm")
    with pytest.raises(ValueError, match="2 to 8 parts"):
        pictures.serial_and_parallel_picture(0.2, [0.8])


def test_parallel_work_ends_with_the_longest_part_and_serial_work_with_all_of_them():
    # Both ends, and that nobody but worker 0 has anything to do at first, are told in words as well.
    told = pictures.serial_and_parallel_picture(1, [2, 4, 3]).alt
    assert "3 parts one after another, and ends after 10 s" in told
    assert told.endswith("they end after 5 s.")
    assert "worker 0 does the same 1 s while the others do nothing" in told


def test_the_tree_reaches_all_in_as_few_rounds_as_there_can_be():
    # Whoever sends has the tensor by then, whoever receives has not; the picture's text tells every message.
    for ranks in (2, 5, 8, 16):
        told = pictures.tree_picture(ranks).alt.rstrip(".").split("round ")[1:]
        holders = {0}
        for sent in told:
            pairs = [(int(one), int(other)) for one, other in re.findall(r"(\d+) to (\d+)", sent)]
            assert {sender for sender, _ in pairs} <= holders
            assert not {receiver for _, receiver in pairs} & holders
            holders |= {receiver for _, receiver in pairs}
        assert holders == set(range(ranks))
        assert len(told) == math.ceil(math.log2(ranks))


@pytest.mark.parametrize(
    "make",
    [
        lambda: pictures.ring_picture(2),
        lambda: pictures.ring_picture(24),
        lambda: pictures.serial_and_parallel_picture(0.2, [0.2, 0.2, 0.2, 0.2]),
        lambda: pictures.serial_and_parallel_picture(1, [3, 1, 2, 3, 1, 2, 3, 1]),
        lambda: pictures.tree_picture(2),
        lambda: pictures.tree_picture(11),
        lambda: pictures.tree_picture(16),
        lambda: pictures.layout_picture(1, 1),
        lambda: pictures.layout_picture(2, 4),
        lambda: pictures.layout_picture(8, 8),
        lambda: pictures.averaging_picture((8, 8, 5)),
        lambda: pictures.weighted_average_picture((8, 8, 5)),
        lambda: pictures.weighted_average_picture((1000, 3, 0)),
        lambda: pictures.speedup_picture(lambda fraction, workers: workers**fraction),
        lambda: pictures.bucket_picture([1, 1, 1, 1], [0.8, 0.8, 0.8, 0.8]),
        lambda: pictures.cut_picture(2),
        lambda: pictures.cut_picture(4),
        lambda: pictures.branches_picture("mlp", 2),
        lambda: pictures.branches_picture("attention", 4),
    ],
)
def test_the_other_pictures_are_legible(make):
    figure = make()
    assert_legible(figure)
    texts = [(t, box) for t, box in drawn_texts(figure) if len(t.get_text()) > 1]
    assert_apart([(t, box) for t, box in texts if t.get_rotation() == 0])


def test_the_layout_names_every_rank_once():
    texts = [t.get_text() for t, _ in drawn_texts(pictures.layout_picture(2, 4))]
    assert sorted(t for t in texts if t.startswith("rank ")) == [f"rank {rank}" for rank in range(8)]
    assert texts.count("local 3") == 2


def test_the_speedup_picture_draws_the_formula_that_it_is_given():
    figure = pictures.speedup_picture(lambda fraction, workers: fraction * workers, (0.5, 1.0), 8)
    assert list(figure.axes[0].lines[0].get_ydata()) == [0.5, 1, 2, 4]
    assert "With 0.5 of the work parallel it reaches 4 on 8 workers." in figure.alt


def test_buckets_share_one_network_and_start_when_they_are_complete():
    # One transfer at a time, in order, none before its bucket is complete.
    backward, communication = [1.0, 2.0, 1.0], [3.0, 0.5, 2.0]
    plan = schedule(backward, communication, first=0.0)
    for (_, complete), (start, _) in zip(plan.backward, plan.communication, strict=True):
        assert start >= complete
    ends = [end for _, end in plan.communication]
    assert [start for start, _ in plan.communication] == [1.0, 4.0, 4.5]
    assert ends == [4.0, 4.5, 6.5]
    assert schedule(backward, communication, first=sum(backward)).end == sum(backward) + sum(communication)


# --- Where output goes


def test_the_target_tells_a_person_from_a_batch_job(live):
    assert display_target() is DisplayTarget.LIVE_NOTEBOOK
    live.kernel._allow_stdin = False
    assert display_target() is DisplayTarget.BATCH_NOTEBOOK


def test_a_rank_writes_plainly_wherever_it_was_launched_from(live):
    assert launch(lambda: display_target().name, ranks=2).results == ["PLAIN", "PLAIN"]


# --- Sliders


def bars(ranks, size=1):
    return bar_figure(
        {"bytes": [size] * ranks}, names=[str(r) for r in range(ranks)], y="bytes", alt=f"{ranks} bars."
    )


def test_explore_shows_a_static_picture_first_and_a_slider_under_it(live):
    explore(bars, ranks=[2, 4, 8], size=Slider([1, 2], start=2, label="size (bytes)"))
    picture, sliders = live.display_pub.outputs
    assert Images(picture["data"]["text/html"]).alts == ["2 bars."]
    assert "application/vnd.jupyter.widget-view+json" in sliders["data"]


def test_moving_a_slider_changes_the_picture_in_its_place(live):
    drawn = []

    def draw(ranks, size):
        drawn.append((ranks, size))
        return bars(ranks, size)

    exploration = Exploration(draw, {"ranks": Slider([2, 4, 8]), "size": Slider([1, 2])})
    exploration.show()
    exploration.controls["ranks"].value = 8
    first, _, update = live.display_pub.outputs
    assert drawn == [(2, 1), (8, 1)]
    assert update["update"]
    assert update["transient"]["display_id"] == first["transient"]["display_id"]
    assert Images(update["data"]["text/html"]).alts == ["8 bars."]
    assert update["data"]["text/html"] != first["data"]["text/html"]


def test_without_a_front_end_the_picture_stands_alone(batch):
    explore(bars, ranks=Slider([2, 4, 8], start=4, label="ranks p"))
    (output,) = batch.display_pub.outputs
    assert Images(output["data"]["text/html"]).alts == ["4 bars."]
    assert "ranks p = 4 (from 2 to 8)" in output["data"]["text/html"]


def test_outside_of_a_notebook_explore_prints_the_words(capsys):
    explore(bars, ranks=[2, 4])
    assert capsys.readouterr().out == "[figure] 2 bars.\n"


def test_the_words_of_a_slider_may_depend_on_its_value(live):
    exploration = Exploration(bars, {"ranks": Slider([2, 4])}, alt=lambda ranks: f"for {ranks} ranks")
    exploration.show()
    exploration.move("ranks", 4)
    alts = [Images(o["data"].get("text/html", "")).alts for o in live.display_pub.outputs]
    assert [alt for alt in alts if alt] == [["for 2 ranks"], ["for 4 ranks"]]


def test_an_error_while_drawing_takes_the_pictures_place(live):
    exploration = Exploration(lambda n: tiny() if n == 1 else 1 / 0, {"n": Slider([1, 2])})
    exploration.show()
    exploration.move("n", 2)
    assert "ZeroDivisionError" in live.display_pub.outputs[-1]["data"]["text/plain"]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Slider([1]), "at least two values"),
        (lambda: Slider([1, 2], start=3), "starts at 3"),
        (lambda: explore(bars), "at least one parameter"),
    ],
)
def test_a_slider_that_makes_no_sense_is_refused(make, words):
    with pytest.raises(ValueError, match=words):
        make()


# --- Progress


def test_batch_output_is_a_few_plain_lines(capsys):
    items = list(progress(range(1000), "batch"))
    out = capsys.readouterr()
    assert items == list(range(1000))
    assert "\r" not in out.out
    assert out.err == "", "nbgrader takes anything on standard error for a failure"
    lines = out.out.splitlines()
    assert 10 <= len(lines) <= 12
    assert lines[-1].startswith("batch 1000/1000  ")


def test_few_steps_have_a_line_each(capsys):
    for _ in progress(iter("abc"), "letter", total=3):
        pass
    assert [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()] == [
        "letter 1/3",
        "letter 2/3",
        "letter 3/3",
    ]


def test_steps_without_a_known_end_are_told_ever_more_rarely(capsys):
    for _ in progress(iter(range(1000))):
        pass
    lines = capsys.readouterr().out.splitlines()
    assert 10 <= len(lines) <= 13
    assert lines[-1].startswith("step 1000  ")


def test_a_loop_that_stops_early_says_how_far_it_came(capsys):
    for number in progress(range(100), "step"):
        if number == 5:
            break
    assert capsys.readouterr().out.splitlines()[-1].startswith("step   5/100")


def test_a_terminal_gets_a_bar(capsys):
    bar = TerminalReporter()
    for done in (1, 2, 3):
        bar.show(Progress("epoch", done, 3, 0.1 * done), f"loss {done}", None)
    bar.close(Progress("epoch", 3, 3, 0.3), "loss 3", None)
    out = capsys.readouterr()
    assert "3/3" in out.out
    assert "loss 3" in out.out
    assert out.err == ""


def test_a_live_notebook_gets_one_output_that_is_replaced(live):
    for _ in progress(range(3), "batch"):
        pass
    first, *updates = live.display_pub.outputs
    assert updates
    assert all(o["update"] for o in updates)
    assert '<progress aria-label="progress" value="3" max="3"' in updates[-1]["data"]["text/html"]
    assert first["transient"]["display_id"] == updates[-1]["transient"]["display_id"]


def test_the_time_left_is_told_in_proportion():
    assert Progress("epoch", 1, 4, 10.0).time == "10.0 s, about 30 s left"
    assert Progress("epoch", 4, 4, 10.0).time == "10.0 s"
    assert Progress("epoch", 4, None, 10.0).time == "10.0 s"


# --- Curves


def train(name="net", epochs=4):
    with LiveCurves(name, total=epochs, unit="epoch", labels={"loss": "loss (nats)"}) as curves:
        for epoch in range(epochs):
            curves.log(train_loss=1 / (epoch + 1), test_loss=2 / (epoch + 1), test_accuracy=90 + epoch)
    return curves


def test_curves_have_a_panel_a_quantity_and_a_line_a_name():
    left, right = train().figure().axes
    assert left.get_ylabel() == "loss (nats)"
    assert [t.get_text() for t in left.get_legend().get_texts()] == ["train", "test"]
    assert [list(line.get_ydata()) for line in left.lines] == [[1, 1 / 2, 1 / 3, 1 / 4], [2, 1, 2 / 3, 1 / 2]]
    assert [list(line.get_xdata()) for line in left.lines] == [[1, 2, 3, 4]] * 2
    assert right.get_ylabel() == "test accuracy"
    assert left.get_xlabel() == right.get_xlabel() == "epoch"


@pytest.mark.parametrize("names", [["loss"], ["train_loss", "test_loss"], ["a_x", "b_x", "a_y", "z"]])
def test_curves_are_legible(names):
    curves = LiveCurves("net", total=3)
    for step in range(3):
        curves.log(**{name: step + k for k, name in enumerate(names)})
    assert_legible(curves.figure())
    curves.close()


def test_reloaded_curves_are_the_logged_ones():
    curves = train()
    assert figure_png(LiveCurves.reload("net")) == figure_png(curves.figure())
    assert isinstance(LiveCurves.reload("net"), Drawing)


def test_reload_takes_the_last_training_that_logged_anything():
    train(epochs=2)
    train(epochs=3)
    LiveCurves("net").close()
    assert "up to epoch 3" in LiveCurves.reload("net").alt
    with pytest.raises(FileNotFoundError, match="Those that were: net"):
        LiveCurves.reload("other")


@pytest.mark.filterwarnings("error")
def test_a_value_may_be_a_tensor_may_be_missing_and_may_be_no_number():
    torch = pytest.importorskip("torch")
    with LiveCurves("net") as curves:
        curves.log(loss=torch.tensor(0.5, requires_grad=True))
        curves.log(loss=math.nan, accuracy=50)
        curves.log(7.5, loss=math.inf)
    (file,) = (course_home() / "curves" / "net").iterdir()
    for line in file.read_text().splitlines():
        json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    series = read_history(file).series
    assert series["loss"][0] == [1.0, 2.0, 7.5]
    assert series["loss"][1][0] == 0.5
    assert all(math.isnan(value) for value in series["loss"][1][1:])
    assert series["accuracy"] == ([2.0], [50.0])
    figure_html(LiveCurves.reload("net"))


def test_a_name_that_is_no_folder_is_refused():
    with pytest.raises(ValueError, match=r"letters, digits"):
        LiveCurves("../secrets")


def test_batch_curves_are_plain_lines_then_the_picture(batch, capsys):
    train(epochs=5)
    out = capsys.readouterr()
    assert [line.split("  ")[0] for line in out.out.splitlines()] == [f"epoch {k}/5" for k in range(1, 6)]
    assert re.search(r"train_loss 0\.2 +test_loss 0\.4 +test_accuracy 94 ", out.out)
    assert "\r" not in out.out
    assert out.err == ""
    (picture,) = batch.display_pub.outputs
    (alt,) = Images(picture["data"]["text/html"]).alts
    assert alt.startswith("Curves of net up to epoch 5: train loss from 1 to 0.2")


def test_plain_lines_of_curves_stand_in_columns(batch, capsys):
    # Numbers of any length, and a tenth step: each name and the time begin where they do in every line.
    with LiveCurves("net", total=10, unit="epoch") as curves:
        for epoch in range(10):
            curves.log(loss=1 / 7**epoch, accuracy=90 + epoch / 2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    for word in ("/10", "loss", "accuracy", " s"):
        assert len({line.index(word) for line in lines}) == 1, word


def test_live_curves_replace_their_picture(live, capsys):
    train(epochs=5)
    first, *updates = live.display_pub.outputs
    assert all(o["update"] for o in updates)
    assert "up to epoch 1:" in Images(first["data"]["text/html"]).alts[0]
    assert "up to epoch 5:" in Images(updates[-1]["data"]["text/html"]).alts[0]
    assert capsys.readouterr().out == ""


def test_curves_of_a_rank_go_into_its_output(live):
    def work():
        train("ranks", epochs=2)

    run = launch(work, ranks=2, quiet=True)
    assert all(output.startswith("epoch 1/2  train_loss 1") for output in run.outputs)
    assert not live.display_pub.outputs
    assert len(list((course_home() / "curves" / "ranks").iterdir())) == 2, "each rank has a file of its own"


def test_a_stopped_training_shows_and_keeps_what_it_had(capsys):
    def interrupted():
        with LiveCurves("net", total=100) as curves:
            for _ in range(7):
                curves.log(loss=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert capsys.readouterr().out.splitlines()[-1].startswith("step   7/100")
    assert "up to step 7" in LiveCurves.reload("net").alt


KILLED = """
from course_lib.notebook.curves import LiveCurves
with LiveCurves("killed", total=10**6) as curves:
    step = 0
    while True:
        curves.log(loss=float(step))
        step += 1
        print(step, flush=True)
"""


def test_a_history_survives_kill_9(home):
    # Everything that had been logged when the process was killed is there, in order, and can be drawn.
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as process:
        seen = 0
        while seen < 50:
            line = process.stdout.readline()
            assert line, "the training ended by itself"
            seen = int(line) if line.strip().isdigit() else seen
        process.send_signal(signal.SIGKILL)
    (file,) = (home / "curves" / "killed").iterdir()
    values = read_history(file).series["loss"][1]
    assert len(values) >= 50
    assert values == [float(k) for k in range(len(values))]
    assert "up to step" in LiveCurves.reload("killed").alt


def test_a_line_cut_off_in_the_middle_is_left_out():
    train()
    (file,) = (course_home() / "curves" / "net").iterdir()
    text = file.read_text()
    file.write_text(text[: text.rindex("{") + 10])
    assert len(read_history(file).entries) == 3


# --- The home


def test_the_home_is_where_the_variable_says(home):
    assert course_home() == home.resolve()
    assert home.is_dir()


def test_a_home_that_cannot_be_made_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COURSE_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(OSError, match="COURSE_HOME"):
        course_home()


# --- Deadlocks in a notebook


def deadlock():
    calls = [PendingCall(r, "recv", (1 - r,), "send", "recv(float32[4])") for r in range(2)]
    return Deadlock("No rank can go on.", calls, cycle=(0, 1))


def test_a_notebook_shows_a_deadlocks_figure_once(live):
    error = deadlock()
    assert error._render_traceback_() == ["Deadlock: No rank can go on."]
    assert error._render_traceback_() == ["Deadlock: No rank can go on."]
    (output,) = live.display_pub.outputs
    assert "Rank 0 waits for rank 1: send." in Images(output["data"]["text/html"]).alts[0]


def test_a_deadlock_is_reported_where_nothing_can_be_displayed(live, monkeypatch):
    monkeypatch.setattr(live.display_pub, "publish", lambda *args, **kwargs: 1 / 0)
    assert deadlock()._render_traceback_() == ["Deadlock: No rank can go on."]


def test_a_terminal_shows_the_report_alone(shell):
    assert deadlock()._render_traceback_() == ["Deadlock: No rank can go on."]
    assert not shell.display_pub.outputs


# --- All together, in a real kernel

NOTEBOOK = [
    "from course_lib.notebook.curves import LiveCurves\n"
    "from course_lib.notebook.widgets import explore\n"
    "from course_lib.figures.plots import line_figure\n"
    "from course_lib.figures.pictures import collective_picture",
    "collective_picture('all_reduce')",
    "def draw(k):\n    return line_figure({'k': ([0, 1], [0, k])}, x='x', y='y', alt=f'slope {k}')\n"
    "explore(draw, k=[1, 2, 3])",
    "with LiveCurves('nb', total=3) as curves:\n    for step in range(3):\n        curves.log(loss=1.0)",
    "LiveCurves.reload('nb')",
]


def test_an_executed_notebook_keeps_its_pictures_and_words_as_a_page():
    exporters = pytest.importorskip("nbconvert.exporters")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in NOTEBOOK])
    NotebookClient(book, timeout=120, kernel_manager_class=OwnSocketsManager).execute()
    streams = [o for cell in book.cells for o in cell.outputs if o.output_type == "stream"]
    assert {o.name for o in streams} == {"stdout"}
    assert not any("\r" in o.text for o in streams)
    page, _ = exporters.HTMLExporter().from_notebook_node(book)
    alts = Images(page).alts
    assert [alt.split(":")[0] for alt in alts] == [
        "all_reduce",
        "slope 1",
        "Curves of nb up to step 3",
        "Curves of nb up to step 3",
    ]
    assert "In a running notebook there are sliders here: k = 1 (from 1 to 3)." in page
    assert "vnd.jupyter.widget-view" not in page, "a widget would be loaded from elsewhere"
