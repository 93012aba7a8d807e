"""Tracks: parts of the workbook in an order, for those who have an afternoon or a day.

`*.toml` here says what each track is; `track` reads them, `cut` makes units of some sections, `folder` writes
what is handed out.
"""
