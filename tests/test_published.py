"""Predictions of published measurements, and the step that they are put together from."""

import statistics
from dataclasses import replace
from itertools import combinations

import pytest
import torch
import torch.distributed as dist

from course_lib import Cluster, Link, launch
from course_lib.launch.failures import RankFailed
from course_lib.models import TransformerConfig
from course_lib.published import Row, h100, on_h100, predictions, transformers
from course_lib.training.mesh_step import Job, Mesh, memory_bytes, step_time
from course_lib.training.pipeline import Costs, cost, schedule_of
from course_lib.training.sharded_block import ShardedBlock
from tests.answers import solved

pytestmark = pytest.mark.xdist_group("published")

MODEL = TransformerConfig(layers=12, width=64, heads=8, vocabulary=128, context=32)
CLUSTER = Cluster(
    nodes=3,
    devices_per_node=4,
    intra_node=Link(3e-6, 40e9),
    inter_node=Link(11e-6, 5e9),
    flops=1e12,
)


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(predictions())


def _of(rows: list[Row], source: str) -> list[Row]:
    found = [row for row in rows if row.source.startswith(source)]
    assert found, f"no row of {source}"
    return found


def test_the_table_of_narayanan_is_met_within_an_eighth(rows: list[Row]) -> None:
    """Ten rows from 32 to 3,072 devices: none is off by 12 %, half of them by less than 9 %."""
    errors = [abs(row.error) for row in _of(rows, "Narayanan")]
    assert len(errors) == 10
    assert max(errors) < 0.12
    assert statistics.median(errors) < 0.09


def test_configurations_that_differ_come_in_the_right_order(rows: list[Row]) -> None:
    """Wherever two rows of Narayanan's table differ by a tenth, the prediction says which one is faster."""
    pairs = [
        (first, second)
        for first, second in combinations(_of(rows, "Narayanan"), 2)
        if abs(first.measured / second.measured - 1) > 0.1
    ]
    assert len(pairs) > 10
    for first, second in pairs:
        assert (first.measured < second.measured) == (first.predicted < second.predicted), (first, second)


@pytest.mark.parametrize(("source", "worst"), [("Horovod", 0.15), ("Goyal", 0.09)])
def test_image_networks_are_met_within_a_fifth(rows: list[Row], source: str, worst: float) -> None:
    """Data parallelism whose gradients travel during backward."""
    assert max(abs(row.error) for row in _of(rows, source)) < worst


@pytest.mark.parametrize(
    ("source", "best", "worst"), [("Shoeybi", 0.02, 0.5), ("Rajbhandari", 0.3, 0.41), ("Iandola", 0.4, 0.64)]
)
def test_what_is_not_met_stays_known(rows: list[Row], source: str, best: float, worst: float) -> None:
    """Rows that the model of a step does not describe: the unit says by how much, and why."""
    errors = [abs(row.error) for row in _of(rows, source)]
    assert (min(errors) < best) == (source == "Shoeybi")
    assert best < max(errors) < worst


def test_no_measurement_goes_into_its_prediction(rows: list[Row], monkeypatch: pytest.MonkeyPatch) -> None:
    """With other numbers measured the predictions are the same."""
    others = [replace(case, measured=2 * case.measured) for case in transformers._TABLE_1]
    monkeypatch.setattr(transformers, "_TABLE_1", others)
    before = [row.predicted for row in rows if row.source.startswith(("Narayanan", "Shoeybi", "Rajbhandari"))]
    assert [row.predicted for row in transformers.rows()] == before


def test_operations_are_those_of_the_blocks() -> None:
    """Equation 3 counts what is simulated: four times the forward of each block, three times the head's."""
    job = Job(MODEL, 6, Cluster(flops=1.0))
    blocks = step_time(job, Mesh(1, 1, 1)).computing
    head = 3 * 2 * 6 * MODEL.context * MODEL.width * MODEL.vocabulary
    assert blocks + head == pytest.approx(transformers.operations(MODEL, 6))


def test_parts_of_a_block_have_all_its_parameters() -> None:
    """Matrices are cut, norms and the biases behind a sum are on all; a whole block has 12 D^2 + 13 D."""
    counts = {
        tensor: sum(each.numel() for each in ShardedBlock(MODEL, tensor).parameters()) for tensor in (1, 4)
    }
    assert counts[1] == 12 * 64**2 + 13 * 64
    assert counts[4] == 12 * 64**2 // 4 + (7 * 64) // 4 + 6 * 64


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 3), (2, 1), (3, 7), (4, 4)])
def test_waiting_is_that_of_gpipe(stages: int, micro_batches: int) -> None:
    """The time of a pipeline is that of unit 05's schedule, message for message."""
    cluster = replace(CLUSTER, nodes=1, devices_per_node=stages)
    time = step_time(Job(MODEL, micro_batches, cluster), Mesh(1, stages, 1))
    stage_seconds = time.computing / micro_batches
    link = cluster.intra_node.seconds(2 * MODEL.context * MODEL.width)
    costs = Costs(stage_seconds / 4, stage_seconds * 3 / 4, message=link)
    schedule = schedule_of(solved("05_pipeline_parallel")["gpipe"], stages, micro_batches)
    assert time.seconds == pytest.approx(cost(schedule, micro_batches, costs).seconds)


@pytest.mark.parametrize("mesh", [Mesh(6, 1, 2), Mesh(1, 3, 4), Mesh(3, 1, 4), Mesh(3, 2, 2)])
def test_all_reduces_take_as_long_as_when_they_are_done(mesh: Mesh) -> None:
    """All tensor groups at once, then all data groups at once, on a simulated run of all ranks."""
    job = Job(MODEL, 12, CLUSTER)
    time = step_time(job, mesh)
    once = launch(_all_reduces, mesh, "tensor", 2 * MODEL.context * MODEL.width, cluster=CLUSTER).seconds
    blocks = MODEL.layers // mesh.pipeline
    assert time.tensor == pytest.approx(6 * blocks * job.micro_batches(mesh) * once)
    gradients = 2 * blocks * (12 * MODEL.width**2 // mesh.tensor + 13 * MODEL.width)
    averaged = launch(_all_reduces, mesh, "data", gradients, cluster=CLUSTER).seconds
    assert time.data == pytest.approx(averaged, rel=1e-3)


def _all_reduces(mesh: Mesh, axis: str, nbytes: int) -> None:
    places = torch.arange(mesh.size).reshape(mesh).movedim(Mesh._fields.index(axis), -1)
    groups = {tuple(each): dist.new_group(each) for each in places.reshape(-1, getattr(mesh, axis)).tolist()}
    (own,) = (members for members in groups if dist.get_rank() in members)
    if len(own) > 1:
        dist.all_reduce(torch.zeros(nbytes, dtype=torch.uint8), group=groups[own])


def test_every_axis_saves_memory_its_own_way() -> None:
    """Stages share blocks; the tensor axis shares matrices; copies save nothing but inputs."""
    job = Job(MODEL, 12, CLUSTER)
    held = {mesh: memory_bytes(job, mesh) for mesh in (Mesh(12, 1, 1), Mesh(1, 12, 1), Mesh(3, 1, 4))}
    assert held[Mesh(1, 12, 1)] < held[Mesh(3, 1, 4)] < held[Mesh(12, 1, 1)]


@pytest.mark.parametrize("mesh", [(5, 2, 1), (12, 0, 1), (1, 1, 12), (4, 3, 3)])
def test_a_mesh_that_cannot_be_is_refused(mesh: tuple[int, int, int]) -> None:
    """Too few or too many devices, or a cut that leaves something over."""
    with pytest.raises(ValueError, match=r"not 12 devices|cannot be cut|over"):
        step_time(Job(MODEL, 12, CLUSTER), Mesh(*mesh))


def test_a_rank_simulates_no_step() -> None:
    """Not even one that has been simulated before."""
    job, mesh = Job(MODEL, 12, CLUSTER), Mesh(3, 1, 4)
    step_time(job, mesh)
    with pytest.raises(RankFailed, match="a rank cannot do that"):
        launch(step_time, job, mesh, ranks=1)
    step_time(job, mesh)


def test_what_a_program_does_beside_its_blocks_is_counted_once_a_step_or_once_a_micro_batch() -> None:
    """One micro-batch adds up no gradients; two do, and pass each stage in two messages."""
    cluster = replace(CLUSTER, memory_bandwidth=1e9)
    one, two = (Job(MODEL, 3 * times, cluster) for times in (1, 2))
    mesh = Mesh(3, 1, 4)
    of_block = 12 * 64**2 / 4 + 13 * 64
    optimizer = 62 * (12 * of_block + 128 * 64 / 4)
    dropouts = 12 * 2 * 7 * 32 * 64
    assert transformers.memory_seconds(one, mesh) == pytest.approx((optimizer + dropouts) / 1e9)
    added = 2 * 12 * 6 * of_block
    assert transformers.memory_seconds(two, mesh) == pytest.approx((optimizer + 2 * dropouts + added) / 1e9)
    assert transformers.message_seconds(two, mesh) == 0
    piped = Mesh(1, 3, 4)
    hop = cluster.inter_node.seconds(2 * 32 * 64 / 4)
    gathered = 3 * cluster.intra_node.seconds(2 * 32 * 64 / 4)
    assert transformers.message_seconds(two, piped) == pytest.approx(2 * 6 * (hop + gathered))


@pytest.fixture(scope="module")
def of_h100() -> list[Row]:
    return list(on_h100.rows())


def test_steps_of_the_h100_are_met_by_its_rates_and_its_queue(of_h100: list[Row]) -> None:
    """Transformers: within 15 % in all but two of ten, none is off by 21 %. SmallCNN is said to be missed."""
    errors = [row.error for row in of_h100 if "layers" in row.what and row.unit == "ms a step"]
    assert len(errors) == 10
    assert sum(abs(error) > 0.15 for error in errors) == 2
    assert max(map(abs, errors)) < 0.21
    missed = [row.error for row in of_h100 if row.what.startswith("SmallCNN") and row.unit == "ms a step"]
    assert [round(error, 1) for error in missed] == [-0.3, -0.4]


def test_peaks_of_the_h100_are_met_to_within_a_five_hundredth(of_h100: list[Row]) -> None:
    """Six of eight to 40 kB."""
    peaks = [row for row in of_h100 if row.unit == "GiB at the peak"]
    assert len(peaks) == 8
    assert max(abs(row.error) for row in peaks) < 0.002
    assert sum(abs(row.predicted - row.measured) * 2**20 < 40 for row in peaks) == 6


@pytest.mark.parametrize("step", h100.STEPS[:1], ids=str)
def test_without_a_queue_a_step_takes_its_roofline(step: h100.Step) -> None:
    """The two rates that were measured on that card, with nothing else known of it."""
    cluster = Cluster(flops=on_h100.CARD.flops, memory_bandwidth=on_h100.CARD.memory_bandwidth)
    assert 1e3 * on_h100.run_step(step, cluster=cluster).seconds == pytest.approx(step.roofline, rel=2e-3)
