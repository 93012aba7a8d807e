"""The grader of `batch_script`."""

import shlex

from course_lib.slurm.lint import Script
from graders.grading.kit import (
    Answer,
    AnswerFailed,
    Criterion,
    FailureKind,
    Finding,
    Findings,
    Rng,
    compare,
    exercise,
)
from graders.units.drivers import call
from graders.units.unit_03.batch_job import job_reports, new_trial
from graders.units.unit_03.job_findings import (
    asked_for,
    fails_with_the_training,
    in_utf8,
    meeting_place,
    named_likewise,
    one_task_a_gpu,
    ports_of_their_own,
    readable_script,
    unasked,
)


@exercise(
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "sbatch reads it",
            1,
            "The first line is #!/bin/bash; then come the lines #SBATCH --option=value, before the first "
            "command. What stands after a command, or is written otherwise, sbatch ignores without a word.",
        ),
        Criterion(
            "what is asked for",
            2,
            "--nodes, --gpus-per-node and --time; and --ntasks-per-node, for srun to know. 0:30 is "
            "30 seconds. The virtual cluster has 6 nodes of 16 cores and 8 GPUs, and no accounts.",
        ),
        Criterion(
            "one task per GPU",
            2,
            "The script itself runs once, on the first node. srun starts the command as the job's tasks, "
            "on all nodes.",
            needs=("what is asked for",),
        ),
        Criterion(
            "a meeting place",
            2,
            "On every node localhost is another machine: export MASTER_ADDR, the first host of the job's "
            "list, and MASTER_PORT, before srun. Two jobs on one node need two ports.",
            needs=("one task per GPU",),
        ),
        Criterion(
            "fails with the training",
            1,
            "A script ends with the status of its last command. If that is an echo, a failed training "
            "looks like success, and what depends on it starts.",
            needs=("what is asked for",),
        ),
    ),
    hints=(
        "How often does Slurm run the script, and where? What has to start on all nodes, then?",
        "The options that count are four: --nodes, --ntasks-per-node, --gpus-per-node, --time.",
        'scontrol show hostnames "$SLURM_JOB_NODELIST" prints the hosts, one per line; `head -n 1`. '
        "Bash computes $((20000 + n % 10000)), and SLURM_JOB_ID is another number in each job.",
        "Let `srun` followed by the command be the last line.",
    ),
)
def batch_script(answer: Answer, rng: Rng) -> Findings:
    """The text is read first; then it is submitted, with a command that ends well and with one that fails."""
    nodes, gpus = rng.choice(((2, 3), (3, 2)))
    text = answer.call(call, nodes, gpus, "python train.py --epochs 3")
    # A quoted word may have several lines, whatever stands round the command in the script.
    words = ("--note", f'run "{rng.integer(1, 99)}" for $5 \\n {{{{x}}}} %%', "two\n  lines", "--rate", "0.1")
    lines = answer.call(call, nodes, gpus, shlex.join(["python", "train.py", *words]))
    reading = readable_script(text)
    if reading.passed and not (again := readable_script(lines)).passed:
        reading = Finding(False, f"With a word of two lines in command: {again.seen}")
    yield "sbatch reads it", reading
    if not reading.passed:
        raise AnswerFailed(FailureKind.NOT_ASKED, 'It was not submitted: first fix "sbatch reads it".')

    trials = [new_trial(words, status) for status in (0, 3, 0)]
    # The last one is for one node.
    sizes = (nodes, gpus), (nodes, gpus), (1, rng.integer(4, 5))
    scripts = [answer.call(call, *size, trial.command) for size, trial in zip(sizes, trials, strict=True)]
    pairs = [(in_utf8(str(script)), trial) for script, trial in zip(scripts, trials, strict=True)]
    # Not on the cluster's first node: a script that names it has to fail. And on no two in a row, so that
    # their list has commas; then on such that follow each other, so that it has none; then on one alone, so
    # that it has no brackets.
    excluded = "node1,node3,node5", "node1,node2", "node1,node2,node3,node4,node6"
    well, ill, alone = job_reports(pairs, exclude=excluded)
    named = unasked(Script(text))
    given = compare.first_failure([asked_for(well, nodes, gpus), asked_for(alone, *sizes[2])])
    yield "what is asked for", given if named.passed else named
    started = one_task_a_gpu(well, trials[0], nodes, gpus)
    yield "one task per GPU", compare.first_failure([started, one_task_a_gpu(alone, trials[2], *sizes[2])])
    met = [
        *(meeting_place(well), named_likewise(well, ill), ports_of_their_own(well, ill)),
        *(meeting_place(alone), named_likewise(well, alone)),
    ]
    yield "a meeting place", compare.first_failure(met)
    yield "fails with the training", fails_with_the_training(well if started.passed else None, ill)
