"""nbgrader's configuration of this course; every nbgrader command run in this folder reads it."""

import os
import sys
import warnings
from pathlib import Path

COURSE = Path(__file__).resolve().parent

c = get_config()  # noqa: F821  (traitlets defines it)

c.CourseDirectory.course_id = "distributed_training"
c.CourseDirectory.root = str(COURSE)

# The build writes the first; nbgrader makes the second of it, deleting what stands there. Students work in
# notebooks/, a copy of the second, which is therefore out of nbgrader's reach.
c.CourseDirectory.source_directory = "build/source"
c.CourseDirectory.release_directory = "build/release"

# Where instructors release and students submit. On a machine that they share, a folder that all can write to.
c.Exchange.root = os.environ.get("COURSE_EXCHANGE", str(COURSE / "exchange"))

# What `nbgrader submit` hands in.
c.Exchange.assignment_dir = str(COURSE / "notebooks")

# Feedback whose formulas can be read without a network.
c.GenerateFeedback.exporter_class = "workbook.pages.FeedbackExporter"

# What has been graded again, or commented on since, is in the feedback that is released next.
c.GenerateFeedback.force = True

# Feedback for submissions that were renamed or put into their place by hand, too.
c.ExchangeFactory.release_feedback = "graders.classroom.exchange.ReleaseFeedback"

# Grades that nobody else can read.
c.ExportApp.plugin_class = "graders.classroom.exchange.PrivateCsv"

# nbgrader calls alembic by its bare name, which an environment that is not activated does not find.
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])

# nbgrader's queries work with today's SQLAlchemy, which warns of their style at length.
warnings.filterwarnings("ignore", module=r"nbgrader\.api")

# Verdicts come from a sandbox, not from running the notebook: MendCells stands in the place of nbgrader's
# DeduplicateIds and GradeInSandbox in the place of Execute; the rest are nbgrader's own lists.
c.Autograde.sanitize_preprocessors = [
    "nbgrader.preprocessors.ClearOutput",
    "graders.classroom.preprocessors.MendCells",
    "nbgrader.preprocessors.OverwriteKernelspec",
    "nbgrader.preprocessors.OverwriteCells",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.Autograde.autograde_preprocessors = [
    "graders.classroom.preprocessors.GradeInSandbox",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.AssignLatePenalties",
    "nbgrader.preprocessors.CheckCellMetadata",
]
