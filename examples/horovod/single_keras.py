"""A classifier in one process: python single_keras.py digits.npz"""

import tensorflow as tf
from dataset import get_dataset

BATCH_SIZE, EPOCHS, LEARNING_RATE = 64, 8, 1.0

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
tf.keras.utils.set_random_seed(0)


(x_train, y_train), (x_test, y_test) = get_dataset()
model = tf.keras.Sequential(
    [
        tf.keras.layers.Flatten(input_shape=x_train.shape[1:]),
        tf.keras.layers.Dense(128, activation="relu"),
        tf.keras.layers.Dropout(0.1),
        tf.keras.layers.Dense(10, activation="softmax"),
    ]
)

optimizer = tf.keras.optimizers.Adadelta(LEARNING_RATE)

model.compile(optimizer, loss="categorical_crossentropy", metrics=["accuracy"])

callbacks = [
    tf.keras.callbacks.ModelCheckpoint("single_keras.h5", monitor="val_loss", mode="min", save_best_only=True)
]

model.fit(
    x_train,
    y_train,
    batch_size=BATCH_SIZE,
    epochs=EPOCHS,
    callbacks=callbacks,
    validation_data=(x_test, y_test),
    verbose=2,
)
