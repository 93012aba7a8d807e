"""JupyterLab of this course: it may run as root, as in a container, and looks as custom/custom.css says."""

from pathlib import Path

c = get_config()  # noqa: F821  (traitlets defines it)

c.ServerApp.allow_root = True
# Where JupyterLab looks for custom.css; it has no option of its own.
c.ServerApp.tornado_settings = {"static_custom_path": [str(Path(__file__).resolve().parent / "custom")]}
c.LabApp.custom_css = True
