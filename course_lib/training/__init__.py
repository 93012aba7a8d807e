"""Training loops, written to be read: each runs unchanged on a laptop's CPU and on an allocation's GPUs.

Read `recipe` (what is trained) and `single_device` (the loop), then `data_parallel`, whose pattern every
further way of training follows: policy is a dataclass, the student's piece and the industry's own are values
of one type, and the device comes from `device`; so `horovod`. `checkpoints`, `elastic` and `horovod_elastic`
are about surviving; `results` says how a training went; `step_timing`, `activation_memory` and
`failure_model` measure and predict what it costs. `pipeline` runs a model that is
cut into stages, after a schedule that comes in.

It runs in the kernel, in ranks of either engine and in batch jobs. It imports data, models, launch and below:
never notebook, whose curves come in as a function.
"""
