"""Sliders and curves that move, each with a static picture first."""

from course_lib.notebook.curves import LiveCurves
from course_lib.notebook.explore import Slider, explore
from course_lib.notebook.reporting import progress
from course_lib.notebook.stepping import step_figure, step_through, steps_figure

__all__ = ["LiveCurves", "Slider", "explore", "progress", "step_figure", "step_through", "steps_figure"]
