"""Sliders and curves that move, each with a static picture first."""

from course_lib.widgets.curves import LiveCurves
from course_lib.widgets.explore import Slider, explore
from course_lib.widgets.reporting import progress

__all__ = ["LiveCurves", "Slider", "explore", "progress"]
