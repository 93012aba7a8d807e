"""Clusters of real machines, with numbers from their makers' documents: `presets.lumi_g(nodes=4)`.

Bandwidths are peaks in one direction, and what a device computes is its peak in float32 without tensor cores;
programs reach less. Latencies are those with which the vendor's library reckons a step of a ring when it
chooses an algorithm, software included: the column "ring, simple" of NVIDIA/nccl v2.28.7,
src/graph/tuning.cc, `ncclTunerConstantsDefaults`, and of ROCm/rccl, src/graph/tuning.cc, `tuning_model_0`.
All messages are rendezvous, as with these libraries. D. De Sensi et al., Exploring GPU-to-GPU communication:
insights into supercomputer interconnects, SC24 (arXiv:2408.14090), measured what such machines really do.
"""

from course_lib.cluster.device import Device
from course_lib.cluster.topology import Cluster, Link

_NVLINK_LATENCY = 3.4e-6
_PCIE_LATENCY = 5.7e-6
_NETWORK_LATENCY = 14.0e-6
_XGMI_LATENCY = 3.6e-6
_RCCL_NETWORK_LATENCY = 15.1e-6

_PCIE_3_X16 = Link(_PCIE_LATENCY, 12.0e9)
"""12.0 GB/s of 15.75 reach the payload: NVIDIA/nccl v2.28.7, src/graph/topo.h, PCI_BW."""


def pcie_box(devices: int = 4) -> Cluster:
    """One machine with NVIDIA Quadro RTX 5000 cards that speak over PCIe 3.0 x16.

    Latency 5.7 µs (NCCL, PCI), bandwidth 12.0 GB/s (NCCL, PCI_BW), to the host as well. A card computes
    11.2 TFLOP/s in float32 and moves 448 GB/s: NVIDIA, Quadro RTX 5000 data sheet (2018), specifications.
    """
    return Cluster(
        devices_per_node=devices,
        intra_node=_PCIE_3_X16,
        host=_PCIE_3_X16,
        flops=11.2e12,
        memory_bandwidth=448e9,
        name="PCIe box",
    )


def nvlink_node(devices: int = 8) -> Cluster:
    """A DGX A100: eight A100 80GB, each with 12 NVLinks of the third generation into a switch for all.

    Latency 3.4 µs (NCCL, NVLINK). 12 links of 20.0 GB/s: NVIDIA/nccl v2.28.7, src/graph/topo.h,
    SM80_NVLINK_BW (25 by name). 19.5 TFLOP/s in float32, 2,039 GB/s: NVIDIA A100 data sheet (2021), A100
    80GB SXM.
    """
    return Cluster(
        devices_per_node=devices,
        intra_node=Link(_NVLINK_LATENCY, 12 * 20.0e9),
        flops=19.5e12,
        memory_bandwidth=2039e9,
        name="NVLink node",
    )


def frontera_rtx(nodes: int = 2) -> Cluster:
    """Nodes of Frontera's rtx queue at TACC, the lecture's: 4 Quadro RTX 5000 that share one network card.

    4 cards a node: Frontera user guide, System Architecture, GPU Nodes, table of specifications. 100 Gbit/s
    a node: the same, Network (HDR100 to the compute nodes; it says nothing else of the GPU nodes). The GPUs
    as in `pcie_box`: 12.0 GB/s, 11.2 TFLOP/s, 448 GB/s. Latency between nodes 14 µs (NCCL, NET).
    """
    return Cluster(
        nodes=nodes,
        devices_per_node=4,
        intra_node=_PCIE_3_X16,
        inter_node=Link(_NETWORK_LATENCY, 12.5e9),
        cards_per_node=1,
        host=_PCIE_3_X16,
        flops=11.2e12,
        memory_bandwidth=448e9,
        name="Frontera rtx",
    )


def lumi_g(nodes: int = 2) -> Cluster:
    """Nodes of LUMI-G: four MI250X, which are eight devices (GCDs); two share a card of 200 Gbit/s.

    LUMI user guide, Hardware, GPU nodes: "Each MI250x module is directly connected to the slingshot-11
    network providing up to 25+25 GB/s". GCDs of different modules are joined by one or two Infinity Fabric
    links of 50 GB/s in each direction (same page); one is taken for all pairs, since a ring over the node
    passes such a pair. Latencies 3.6 and 15.1 µs (RCCL, NVLINK and NET). A GCD computes 23.9 TFLOP/s in
    float32 and moves 1.6 TB/s: half of an MI250X, AMD Instinct MI250X data sheet (2021).
    """
    return Cluster(
        nodes=nodes,
        devices_per_node=8,
        intra_node=Link(_XGMI_LATENCY, 50e9),
        inter_node=Link(_RCCL_NETWORK_LATENCY, 25e9),
        cards_per_node=4,
        flops=23.9e12,
        memory_bandwidth=1.6e12,
        name="LUMI-G",
    )


def h100_pod(nodes: int = 4) -> Cluster:
    """DGX H100 nodes of a SuperPOD: eight H100, each with 18 NVLinks and a card of 400 Gbit/s of its own.

    18 links of 20.6 GB/s: NVIDIA/nccl v2.28.7, src/graph/topo.h, SM90_NVLINK_BW (25 by name). Eight
    400 Gbit/s ports a node for computing: NVIDIA, DGX SuperPOD reference architecture, DGX H100 (2023),
    compute fabric. Latencies 3.4 and 14 µs (NCCL, NVLINK and NET). 67 TFLOP/s in float32, 3.35 TB/s: NVIDIA
    H100 data sheet (2023), H100 SXM.
    """
    return Cluster(
        nodes=nodes,
        devices_per_node=8,
        intra_node=Link(_NVLINK_LATENCY, 18 * 20.6e9),
        inter_node=Link(_NETWORK_LATENCY, 50e9),
        cards_per_node=8,
        flops=67e12,
        memory_bandwidth=3.35e12,
        name="H100 pod",
    )


def one_h100() -> Cluster:
    """One H100 80GB SXM and its host, with what was measured of them, which no data sheet says.

    49.8 TFLOP/s in float32 (without TF32) and 737 in bfloat16 in a large product, 2,899 GB/s in a large copy,
    44 µs for the host to queue an operation: this workbook, 2026-11-26, torch 2.11.0+cu130. To the host PCIe
    5.0 x16, of which four times the payload of PCIe 3.0 x16 is taken. How far it is met:
    `course_lib.published.on_h100`.
    """
    card = Device(
        flops=49.76e12,
        half_flops=737.2e12,
        memory_bandwidth=2899e9,
        dispatch_seconds=44.2e-6,
        cuda_kernels=True,
    )
    return Cluster(device=card, host=Link(10e-6, 4 * _PCIE_3_X16.bandwidth), name="one H100")
