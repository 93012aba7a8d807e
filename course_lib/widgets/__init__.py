"""Sliders and steppers that answer a question, each with a static picture first."""
