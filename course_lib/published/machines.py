"""The machines of published measurements, with what their GPUs reach.

What a GPU reaches in matrix products of 16 bits is measured, by others and on one GPU: A100 230 TFLOP/s of
312, V100 95 of 125, the row "Matrix Multiplication FP32 / FP16" of https://github.com/mli/transformers-benchmarks
(2022). This is the one constant of a GPU type. Memory bandwidths are peaks, from the same table: 2,039 and
900 GB/s. Bandwidth of a GPU's NVLinks: NVIDIA/nccl v2.28.7, src/graph/topo.h, 20.0 GB/s a link of the second
and third generation (25 by name). Latencies as in `course_lib.cluster.presets`.

What a P100 or a K20X reaches with an image network is measured on one GPU with that very network, by
TensorFlow's benchmarks or in the paper itself; see `course_lib.published.images`.
"""

from course_lib.cluster.topology import Cluster, Link

_NVLINK_LATENCY = 3.4e-6
_NETWORK_LATENCY = 14.0e-6

TITAN = Link(_NETWORK_LATENCY, 6.0e9)
"""Between GPUs of Titan: PCIe 2.0 x16, half of the 12.0 GB/s of PCIe 3.0 (same source)."""


def selene(nodes: int) -> Cluster:
    """DGX A100 80 GB: 12 NVLinks a GPU; eight cards of 200 Gbit/s for computing, one for each GPU.

    D. Narayanan et al., arXiv:2104.04473, section 5.
    """
    return Cluster(
        nodes=nodes,
        devices_per_node=8,
        intra_node=Link(_NVLINK_LATENCY, 12 * 20.0e9),
        inter_node=Link(_NETWORK_LATENCY, 25e9),
        flops=230e12,
        memory_bandwidth=2039e9,
        name="Selene",
    )


def dgx_2(nodes: int) -> Cluster:
    """DGX-2: 16 V100 with 6 NVLinks each into a switch; eight cards of 100 Gbit/s, which pairs of GPUs share.

    M. Shoeybi et al., arXiv:1909.08053, section 5 (300 GB/s in a server, 100 GB/s between servers).
    """
    return Cluster(
        nodes=nodes,
        devices_per_node=16,
        intra_node=Link(_NVLINK_LATENCY, 6 * 20.0e9),
        inter_node=Link(_NETWORK_LATENCY, 12.5e9),
        cards_per_node=8,
        flops=95e12,
        memory_bandwidth=900e9,
        name="DGX-2",
    )


def ethernet(nodes: int, devices: int, gigabits: float) -> Cluster:
    """Servers whose GPUs share one network card. Within a server: 4 NVLinks of a P100, 20 GB/s each."""
    return Cluster(
        nodes=nodes,
        devices_per_node=devices,
        intra_node=Link(_NVLINK_LATENCY, 4 * 20.0e9),
        inter_node=Link(_NETWORK_LATENCY, gigabits / 8 * 1e9),
        cards_per_node=1,
        name="Ethernet",
    )
