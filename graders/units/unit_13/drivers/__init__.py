"""Drivers of unit 13: they run beside the student's code, which could read an expected value here."""
