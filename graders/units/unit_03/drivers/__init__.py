"""Drivers of unit 03: they run beside the student's code, which could read an expected value here."""
