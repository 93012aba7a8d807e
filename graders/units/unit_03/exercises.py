"""Graders of unit 03, many nodes: the rubrics, and in which order what is judged.

First what places a job on nodes (`graders.units.unit_03.multi_node`), then what lets it survive
(`graders.units.unit_03.checkpointing`).
"""

from collections.abc import Iterator

import torch

from graders.grading.answer import Answer, AnswerFailed
from graders.grading.exercise import Criterion, Finding, exercise
from graders.grading.rng import Rng
from graders.units.unit_03 import launchers
from graders.units.unit_03.batch_job import new_trial, outcomes
from graders.units.unit_03.checkpointing import (
    Saves,
    directory_synced,
    draw_state,
    first_failed,
    full_disk,
    loads,
    next_save_works,
    nothing_there,
    round_trip,
    saved_bytes,
    synced_before_renamed,
    tells_and_keeps,
    temporary_beside,
    torn,
    whole_at_every_moment,
    zeroed,
)
from graders.units.unit_03.multi_node import (
    alone,
    asked_for,
    bindings,
    draw_bracket,
    draw_dimensions,
    draw_list,
    draw_names,
    draw_zeros,
    expansions,
    fails_with_the_training,
    meeting_place,
    one_task_a_gpu,
    places,
    readable_script,
)
from graders.units.unit_03.resuming import (
    Course,
    complete,
    data_position,
    even,
    goes_on,
    intervals,
    killed_anywhere,
    not_tried,
    same_weights,
    saves_regularly,
    shuffles,
    trains,
    weights_right,
    worlds,
)
from graders.units.unit_03.topologies import (
    DGX_A100,
    GRACE_HOPPER,
    LUMI_G,
    draw_nvidia,
    draw_plain,
    draw_reserved,
    draw_threads,
)

UNIT = "03_multi_node"


# ------------------------------------------------------------------------------------------ expand_hostlist


@exercise(
    unit=UNIT,
    name="expand_hostlist",
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "plain names",
            1,
            "Without brackets the list is what stands between the commas, in its order, twice where a name "
            "stands twice; an empty text is no host.",
        ),
        Criterion("a range", 1, "In Slurm's ranges both ends belong to it: [3-5] is 3, 4 and 5."),
        Criterion(
            "leading zeros",
            1,
            "007 is a text. Fill every number of a range with zeros to the width of the range's first; a "
            "longer number keeps all its digits.",
        ),
        Criterion(
            "several in brackets",
            1,
            "Inside brackets a comma separates numbers and ranges, outside it separates names: find the "
            "brackets before you split by commas.",
        ),
        Criterion(
            "two brackets",
            2,
            "Every number of the first bracket goes with every number of the second, the second counting "
            "fastest.",
        ),
    ),
    hints=(
        "A regular expression can say what a name is: anything but a comma, or a whole bracket, repeatedly.",
        "re.split with a group in its pattern keeps what the group matched: texts and brackets in turn.",
        'itertools.product yields every combination, the last counting fastest; f"{n:0{width}}" fills up.',
    ),
)
def expand_hostlist(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Lists in the style of real clusters, from plain names to several dimensions."""
    yield expansions("plain names", answer, draw_names(rng))
    yield expansions("a range", answer, draw_bracket(rng))
    yield expansions("leading zeros", answer, draw_zeros(rng))
    yield expansions("several in brackets", answer, draw_list(rng))
    yield expansions("two brackets", answer, draw_dimensions(rng))


# ------------------------------------------------------------------------------------- rank_from_environment


@exercise(
    unit=UNIT,
    name="rank_from_environment",
    minutes=15,
    difficulty=3,
    rubric=(
        Criterion(
            "srun",
            1,
            "SLURM_PROCID, SLURM_LOCALID and SLURM_NODEID say where the task is, however the tasks were "
            "dealt out; SLURM_NTASKS says how many there are. They are texts: return whole numbers.",
        ),
        Criterion("torchrun", 1, "torchrun calls the node's number GROUP_RANK."),
        Criterion(
            "mpirun",
            1,
            "Open MPI does not number the nodes: OMPI_COMM_WORLD_NODE_RANK counts processes on a node. "
            "How many processes has a node, and which are on the first?",
        ),
        Criterion(
            "Horovod",
            1,
            'Horovod\'s "cross" rank counts along the processes of equal local rank: one a node.',
        ),
        Criterion(
            "one launcher inside another",
            2,
            "Variables are inherited. The launcher that started this very process is the innermost one: "
            "ask for torchrun's, Horovod's and Open MPI's variables before you ask for Slurm's.",
        ),
        Criterion(
            "no launcher",
            1,
            "Without a launcher there is one process, rank 0 of 1. A batch script's shell is such a "
            "process: it has SLURM_PROCID=0 and SLURM_NTASKS, but no SLURM_STEP_ID, since no srun has "
            "started it.",
        ),
    ),
    hints=(
        "Write a table: for each launcher the names of its four variables. Then look which launcher's are "
        "there.",
        'The answer is the first launcher whose rank variable is in env: `"RANK" in env`.',
        "Where ranks fill one node after another, the node's number is rank // local size.",
    ),
)
def rank_from_environment(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Environments as recorded, with the numbers of a drawn world."""
    nodes, per_node = rng.integer(2, 4), rng.integer(3, 5)
    seats = launchers.seats_in_blocks(nodes, per_node)
    some = [seats[0], seats[per_node + 1], seats[-1]]
    dealt = launchers.seats_dealt(nodes, per_node)
    yield places("srun", answer, [(launchers.srun, some), (launchers.srun, dealt[1 :: nodes + 1])])
    yield places("torchrun", answer, [(launchers.torchrun, some)])
    yield places("mpirun", answer, [(launchers.mpirun, some)])
    yield places("Horovod", answer, [(launchers.horovodrun, some)])
    nested = (launchers.torchrun_by_srun, launchers.mpirun_in_a_job, launchers.horovodrun_in_a_job)
    yield places("one launcher inside another", answer, [(launcher, some) for launcher in nested])
    yield alone("no launcher", answer, seats[0])


# -------------------------------------------------------------------------------------------- batch_script


@exercise(
    unit=UNIT,
    name="batch_script",
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
            "--nodes, --gpus-per-node and --time; and --ntasks-per-node, for srun to know. The virtual "
            "cluster has 3 nodes of 16 cores and 8 GPUs, one partition, and no accounts.",
        ),
        Criterion(
            "one task a GPU",
            2,
            "The script itself runs once, on the first node. srun starts the command as the job's tasks, "
            "on all nodes.",
        ),
        Criterion(
            "a meeting place",
            2,
            "On every node localhost is another machine: export MASTER_ADDR, the first host of the job's "
            "list, and MASTER_PORT, before srun.",
        ),
        Criterion(
            "fails with the training",
            1,
            "A script ends with the status of its last command. If that is an echo, a failed training "
            "looks like success, and what depends on it starts.",
        ),
    ),
    hints=(
        "The options that count are four: --nodes, --ntasks-per-node, --gpus-per-node, --time.",
        'scontrol show hostnames "$SLURM_JOB_NODELIST" prints the hosts, one a line; `head -n 1`.',
        "Let `srun` followed by the command be the last line.",
    ),
)
def batch_script(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """The text is read first; then it is submitted, with a command that ends well and with one that fails."""
    nodes, gpus = rng.choice(((2, 2), (2, 3), (3, 2)))
    text = answer.call("call", nodes, gpus, "python train.py --epochs 3")
    reading = readable_script("sbatch reads it", text)
    yield reading
    if not reading.passed:
        raise AnswerFailed("NotSubmitted", 'It was not submitted: first mend "sbatch reads it".')

    words = ("--note", f"run {rng.integer(1, 99)}", "--rate", "0.1")
    trials = [new_trial(words, status) for status in (0, 3)]
    scripts = [answer.call("call", nodes, gpus, trial.command) for trial in trials]
    well, ill = outcomes([(str(script), trial) for script, trial in zip(scripts, trials, strict=True)])
    yield asked_for("what is asked for", well, nodes, gpus)
    yield one_task_a_gpu("one task a GPU", well, trials[0], nodes, gpus)
    yield meeting_place("a meeting place", well)
    yield fails_with_the_training("fails with the training", well, ill)


# -------------------------------------------------------------------------------------------- cpu_bind_map


@exercise(
    unit=UNIT,
    name="cpu_bind_map",
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion(
            "LUMI-G",
            1,
            "GPU 0 is beside NUMA node 3. Its allowed cores are 49-55 and 57-63; two GPUs share them, so "
            "GPU 0 gets the first seven, GPU 1 the other seven.",
        ),
        Criterion(
            "any machine",
            2,
            "Take everything from the text: which NUMA node a GPU is on, which cores that node has (a "
            "list may be 0,2,4,6), how many GPUs share them. GPU 10 comes after GPU 9.",
        ),
        Criterion(
            "allowed cores",
            1,
            "Which cores are reserved differs from site to site: keep those of the node that are in "
            "Cpus_allowed_list, then deal them out.",
        ),
        Criterion(
            "hardware threads",
            1,
            "With two threads a core, half of a node's CPUs are second threads of the other half's cores: "
            "a rank that starts there shares a core with another rank.",
        ),
        Criterion(
            "NVIDIA",
            2,
            "The columns of nvidia-smi topo -m are separated by tabs, and the header tells which is NUMA "
            "Affinity; newer drivers have one more after it. Network cards have rows too. A NUMA node may "
            "have no cores.",
        ),
    ),
    hints=(
        'Write a function that turns "0-3,8" into [0, 1, 2, 3, 8], and use it for all three kinds of lists.',
        r're.findall(r"NUMA node(\d+) CPU\(s\):[ \t]*(\S*)", topology) gives each node with its list.',
        "A node's cores in n equal blocks: block number k begins at k * (len(cores) // n).",
    ),
)
def cpu_bind_map(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A real machine of each maker, and drawn ones."""
    yield bindings("LUMI-G", answer, [(LUMI_G.by_rocm_smi(), LUMI_G)])
    for criterion, machines in (
        ("any machine", draw_plain(rng)),
        ("allowed cores", draw_reserved(rng)),
        ("hardware threads", draw_threads(rng)),
    ):
        yield bindings(criterion, answer, [(machine.by_rocm_smi(), machine) for machine in machines])
    (drawn,) = draw_nvidia(rng)
    real = [(DGX_A100.by_nvidia_smi(12, newer=False), DGX_A100), (drawn.by_nvidia_smi(2, newer=True), drawn)]
    alone = (GRACE_HOPPER.by_nvidia_smi(0, newer=True), GRACE_HOPPER)
    yield bindings("NVIDIA", answer, [*real, alone])


# ------------------------------------------------------------------------------------- checkpoints, survival


# -------------------------------------------------------------------------------------- checkpoint_interval


@exercise(
    unit=UNIT,
    name="checkpoint_interval",
    minutes=8,
    difficulty=1,
    rubric=(
        Criterion(
            "one node",
            2,
            "Saving costs C / T of the time, failures T / 2M of it. Where is the sum least? Set its "
            "derivative by T to zero.",
        ),
        Criterion(
            "many nodes",
            2,
            "With n nodes of which each fails every M seconds, the job fails every M / n seconds.",
        ),
    ),
    hints=(
        "d/dT of C / T is -C / T^2, of T / 2M it is 1 / 2M.",
        "The job's mean time between failures is what belongs into the formula, not the node's.",
    ),
)
def checkpoint_interval(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Young's interval, for one node and for many."""
    day = 86_400.0
    cases = [(rng.integer(5, 600) / 1.0, rng.integer(2, 900) * day) for _ in range(3)]
    # So short that it shows if something is rounded.
    short = rng.integer(51, 59) / 10, rng.integer(1011, 1019) / 10
    yield intervals("one node", answer, [*cases, short])
    yield intervals("many nodes", answer, [(*case, rng.integer(2, 2000)) for case in cases])


# ------------------------------------------------------------------------------------------ save_checkpoint


@exercise(
    unit=UNIT,
    name="save_checkpoint",
    minutes=25,
    difficulty=3,
    rubric=(
        Criterion("can be loaded", 1, "torch.save(state, file) writes it; the last name it gets is path."),
        Criterion(
            "whole at every moment",
            3,
            "Never open path itself for writing, never remove it, never move it away. Write another file and "
            "let os.replace put it in the place of the old one: that is one step, which happens or does not.",
        ),
        Criterion(
            "temporary file",
            1,
            "Within one folder a rename is one step; to another disk it is a copy. A name that ends in .tmp "
            "tells load_latest what to leave alone.",
        ),
        Criterion(
            "on the disk before its name",
            2,
            "What you have written waits in Python's buffer, then in the operating system's. flush() empties "
            "the first, os.fsync(file.fileno()) the second; both before the file gets its name.",
        ),
        Criterion(
            "the directory too",
            1,
            "A name stands in its directory, which is written to the disk like a file: os.open(folder, "
            "os.O_RDONLY), os.fsync, os.close, after os.replace.",
        ),
        Criterion(
            "after a crash",
            1,
            'A crash leaves a temporary file behind, and opening it with mode "xb" fails from then on.',
        ),
        Criterion(
            "a full disk",
            1,
            "Let the error through, so that training hears of it; but first remove what you have written.",
        ),
    ),
    hints=(
        "Five steps: write beside it, flush, fsync, os.replace, fsync of the directory.",
        'path.with_name(path.name + ".tmp") is a name beside path.',
        "try: ... except BaseException: remove the temporary file; raise.",
    ),
)
def save_checkpoint(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Real files of real processes, killed at every step."""
    saves = Saves.drawn(answer, rng)
    yield round_trip(saves)
    yield whole_at_every_moment(saves)
    yield temporary_beside(saves)
    yield synced_before_renamed(saves)
    yield directory_synced(saves)
    yield next_save_works(saves)
    yield full_disk(saves)


# ---------------------------------------------------------------------------------------------- load_latest


@exercise(
    unit=UNIT,
    name="load_latest",
    minutes=20,
    difficulty=3,
    rubric=(
        Criterion(
            "newest",
            2,
            "Compare the numbers in the names as numbers: as texts step-9 comes after step-10. When a file "
            "was changed says nothing, for copying changes it.",
        ),
        Criterion(
            "nothing there",
            1,
            "A first start finds an empty folder, or none. That is no error.",
        ),
        Criterion(
            "other files",
            1,
            "Only step-N.pt counts, with digits for N: not step-12.pt.tmp, which is a save that did not end, "
            "and not best.pt.",
        ),
        Criterion(
            "torn files",
            2,
            "Try the newest, then the one before, and so on. What torch.load raises depends on which bytes "
            "are missing: RuntimeError, OSError, EOFError, UnpicklingError, IndexError.",
        ),
        Criterion(
            "damaged inside",
            2,
            "torch.load reads numbers without checking them. The file is a zip archive, which has a checksum "
            "of each part: zipfile.ZipFile(path).testzip() returns None if all are right.",
        ),
        Criterion(
            "tells and keeps",
            1,
            "warnings.warn names the file that was skipped; somebody will want to look at it, so leave it.",
        ),
    ),
    hints=(
        're.fullmatch(r"step-([0-9]+)\\.pt", name) finds the number.',
        "Sort the paths by number, newest first, and return from within the loop.",
        "One try: around everything that reads a file, except Exception as error: around nothing else.",
    ),
)
def load_latest(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """Folders as crashes leave them."""
    step = rng.integer(8, 9)
    states = [draw_state(rng, step + each) for each in range(4)]
    contents = [saved_bytes(state) for state in states]
    # The newest first: the drivers make the first file the one that was changed last.
    good = {f"step-{step + each}.pt": contents[each] for each in (1, 3, 0, 2)}
    newest = f"step-{step + 3}.pt"
    yield loads("newest", answer, good, states[3], f"checkpoints of the steps {step} to {step + 3}")

    yield nothing_there(answer)

    others = {f"step-{step + 4}.pt.tmp": contents[0][:500], f".step-{step + 5}.pt.x7": contents[0]}
    others |= {"best.pt": contents[1], f"old-step-{step + 6}.pt": contents[0], "steps.jsonl": b"{}"}
    folders = (f"step-{step + 7}.pt.tmp", "sharded")
    yield loads("other files", answer, good | others, states[3], "a folder with other files too", *folders)

    cases = torn(rng, contents[3])
    findings = [
        loads("torn files", answer, good | {newest: bad}, states[2], f"a folder whose newest file is {what}")
        for what, bad in cases.items()
    ]
    two = good | {newest: cases["cut off"], f"step-{step + 2}.pt": cases["empty"]}
    findings.append(loads("torn files", answer, two, states[1], "a folder whose two newest files are torn"))
    bad = dict(zip(good, cases.values(), strict=False))
    findings.append(loads("torn files", answer, bad, None, "a folder whose files are all torn"))
    yield first_failed(findings)

    damaged = good | {newest: zeroed(states[3])}
    what = "a folder whose newest file has zeros in place of some weights"
    yield loads("damaged inside", answer, damaged, states[2], what)

    two = damaged | {f"step-{step + 2}.pt": cases["empty"]}
    yield tells_and_keeps("tells and keeps", answer, two, [newest, f"step-{step + 2}.pt"])


# --------------------------------------------------------------------------------------------------- resume


@exercise(
    unit=UNIT,
    name="resume",
    minutes=35,
    difficulty=4,
    rubric=(
        Criterion(
            "trains",
            1,
            "An epoch has ceil(N / batch_size) steps, and each sample once; the last batch may be short.",
        ),
        Criterion("shuffles each epoch", 1, "Rng another permutation for each epoch."),
        Criterion(
            "saves",
            1,
            "Count the steps that are done, through all epochs; save when that number divides by save_every, "
            "and after the last, as step-N.pt with N steps done.",
        ),
        Criterion(
            "goes on",
            1,
            "Begin with load_latest. The number of steps done belongs into the checkpoint: go on from there, "
            "not from the beginning of the training or of the epoch.",
        ),
        Criterion(
            "data position",
            2,
            "The order of an epoch has to be the same after a restart in its middle: draw it from a "
            "generator seeded with the epoch, or save it. And skip what was seen already.",
        ),
        Criterion(
            "model and optimizer",
            2,
            "Momentum is as much a part of the training as the weights: save and load both state_dicts.",
        ),
        Criterion(
            "random state",
            2,
            "Dropout draws from torch's global generator: torch.get_rng_state() belongs into the checkpoint, "
            "and torch.set_rng_state() comes after everything that draws.",
        ),
        Criterion(
            "killed anywhere",
            2,
            "What is not in the checkpoint is gone. And a training that has ended makes no step more.",
        ),
    ),
    hints=(
        "One number says where you are: step. epoch, position = divmod(step, steps_an_epoch).",
        "torch.randperm(N, generator=torch.Generator().manual_seed(epoch)) is the same after every restart.",
        "Save the state as it is after the step, with the number of steps done.",
    ),
)
def resume(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """A training without kills, and the same training with them."""
    course = Course.drawn(rng)
    (whole,) = course.live(answer)
    yield trains(course, whole)
    yield shuffles(course, whole)
    yield saves_regularly(course, whole)

    # In the second epoch, two steps after a checkpoint.
    step = course.an_epoch // course.save_every * course.save_every + course.save_every
    death = ("step", step + rng.integer(1, 2))
    first, second = course.live(answer, death)
    went_on = goes_on(course, first, second)
    yield went_on
    yield data_position(course, whole, first, second)
    same = same_weights("model and optimizer", whole, second, f"Killed after step {death[1]}")
    yield same
    if not (went_on.passed and same.passed):
        yield from not_tried(("random state", "killed anywhere"), "goes on", "model and optimizer")
        return

    (noisy,) = course.live(answer, noisy=True)
    first, second = course.live(answer, death, noisy=True)
    same = same_weights("random state", noisy, second, f"With dropout, killed after step {death[1]}")
    yield same
    if same.passed:
        yield killed_anywhere(course, answer, noisy, rng)
    else:
        yield from not_tried(("killed anywhere",), "random state")


# -------------------------------------------------------------------------------------------- elastic_batch


@exercise(
    unit=UNIT,
    name="elastic_batch",
    minutes=15,
    difficulty=2,
    rubric=(
        Criterion(
            "complete",
            2,
            "Together the ranks take the positions 0 to global_batch - 1, each once, also where the number "
            "of ranks does not divide them.",
        ),
        Criterion(
            "balanced",
            1,
            "global_batch % world_size samples are left over: one each for so many ranks, not all for one.",
        ),
        Criterion(
            "weight",
            2,
            "Rank k's mean loss over m_k samples should count m_k / n, and the mean over p ranks counts it "
            "1 / p.",
        ),
        Criterion("more ranks than samples", 1, "A rank without samples has weight 0, and still takes part."),
    ),
    hints=(
        "rank * n // p and (rank + 1) * n // p are the ends of parts that differ by one at most.",
        "Unit 02: the gradient of the whole is the sum of m_k / n times g_k. The ranks average: 1 / p times "
        "the sum.",
    ),
)
def elastic_batch(answer: Answer, rng: Rng) -> Iterator[Finding]:
    """The same global batch on worlds that divide it and worlds that do not."""
    batch = 4 * rng.integer(6, 12)
    sizes = [4, 3, 2, 1, rng.choice((5, 7)), 4]
    given = worlds(answer, [(batch, size) for size in dict.fromkeys(sizes)])
    few = worlds(answer, [(rng.integer(1, 3), rng.integer(4, 6))])
    losses = rng.normal(batch, dtype=torch.float64).exp()
    yield complete("complete", given)
    yield even(given)
    yield weights_right("weight", given, losses)
    yield weights_right("more ranks than samples", few, losses)
