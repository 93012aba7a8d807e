"""The same on several processes: horovodrun -np 2 python horovod_keras.py digits.npz"""

import horovod.tensorflow.keras as hvd
import tensorflow as tf
from dataset import get_dataset

BATCH_SIZE, EPOCHS, LEARNING_RATE = 64, 8, 1.0

hvd.init()  # 1
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")  # 2: one GPU a process
tf.keras.utils.set_random_seed(hvd.rank())

(x_train, y_train), (x_test, y_test) = get_dataset(hvd.rank(), hvd.size())
model = tf.keras.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=x_train.shape[1:]),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

optimizer = tf.keras.optimizers.Adadelta(LEARNING_RATE * hvd.size())  # 3
optimizer = hvd.DistributedOptimizer(optimizer)  # 4
model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),  # 5: the first batch has made the optimizer's state
    hvd.callbacks.MetricAverageCallback(),
    hvd.callbacks.LearningRateWarmupCallback(LEARNING_RATE * hvd.size(), warmup_epochs=3, verbose=1),
]
if hvd.rank() == 0:  # 6
    callbacks.append(
        tf.keras.callbacks.ModelCheckpoint(
            "horovod_keras.h5", monitor="val_loss", mode="min", save_best_only=True
        )
    )

model.fit(
    x_train,
    y_train,
    batch_size=BATCH_SIZE,
    steps_per_epoch=len(x_train) // BATCH_SIZE,
    epochs=EPOCHS,
    callbacks=callbacks,
    validation_data=(x_test, y_test),
    verbose=2 if hvd.rank() == 0 else 0,
)
