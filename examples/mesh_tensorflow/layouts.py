"""An MLP in Mesh-TensorFlow: what each layout sends, and which layout its search finds.

Shapes: B samples, D numbers each, F inside the MLP, V classes. Run by unit 06, section 12, in the environment
that `course beside mesh-tensorflow` makes; prints one JSON object.
"""

import json
import os
import re
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.python.framework import ops

# Mesh-TensorFlow 0.1.21 looks for it where TensorFlow had it before 2.14.
ops.register_tensor_conversion_function = tf.register_tensor_conversion_function
import mesh_tensorflow as mtf  # noqa: E402
import mesh_tensorflow.auto_mtf  # noqa: E402


def mlp(sizes: dict[str, int]) -> tuple[mtf.Graph, mtf.Mesh, list[mtf.Tensor]]:
    """The graph, its mesh, and: the loss, the gradients of both matrices. Tensors hold sin 1, sin 2 ..."""
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    b, d, f, v = (mtf.Dimension(name, size) for name, size in sizes.items())

    def drawn(name: str, *dims: mtf.Dimension) -> mtf.Tensor:
        shape = mtf.Shape(dims)
        # A part of the graph, not numbers: a search needs the shapes alone.
        places = tf.reshape(tf.range(1, shape.size + 1), shape.to_integer_list)
        values = tf.sin(tf.cast(places, tf.float32), name=name)
        return mtf.import_tf_tensor(mesh, values, shape)

    x, up, down = drawn("x", b, d), drawn("up", d, f), drawn("down", f, v)
    y = mtf.einsum([mtf.relu(mtf.einsum([x, up], [b, f])), down], [b, v])
    loss = mtf.reduce_mean(mtf.square(y))
    return graph, mesh, [loss, *mtf.gradients([loss], [up, down])]


def lowered(sizes: dict[str, int], mesh_shape: str, layout: str) -> dict[str, object]:
    """The values under a layout; sums: how many numbers all ranks give to all-reduces of einsums, by axis."""
    with tf.Graph().as_default(), tf.Session() as session:
        graph, mesh, outputs = mlp(sizes)
        shape = mtf.convert_to_shape(mesh_shape)
        devices = ["cpu:0"] * shape.size
        placed = mtf.placement_mesh_impl.PlacementMeshImpl(
            shape, mtf.convert_to_layout_rules(layout), devices
        )
        lowering = mtf.Lowering(graph, {mesh: placed})
        values = session.run([lowering.export_to_tf_tensor(output) for output in outputs])
        sums = [0] * shape.ndims
        for name, numbers in lowering._counters:
            # Such as "allreduce/[0]/einsum_op".
            if found := re.fullmatch(r"allreduce/\[(\d+)\]/einsum_op", name):
                sums[int(found[1])] += int(numbers)
        return {
            "loss": float(values[0]),
            "gradients": [float(np.abs(v).sum()) for v in values[1:]],
            "sums": sums,
        }


def searched(sizes: dict[str, int], mesh_shape: str) -> str:
    """The layout with which a rank needs the least memory, found by auto_mtf."""
    with tf.Graph().as_default():
        graph, _, outputs = mlp(sizes)
        rules = mtf.auto_mtf.layout(graph, mesh_shape, outputs[:1])
        return ";".join(sorted(f"{dimension}:{axis}" for dimension, axis in rules._pairs))


if __name__ == "__main__":
    asked = json.loads(sys.argv[1])
    told = {
        "layouts": [lowered(*each) for each in asked["layouts"]],
        "searched": [searched(*each) for each in asked["searched"]],
    }
    print(json.dumps(told))
