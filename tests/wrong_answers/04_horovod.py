"""Mistakes that people make in unit 04."""
