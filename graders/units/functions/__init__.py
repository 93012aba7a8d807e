"""What units share whose answers are called once, without ranks: the stage on which cases are tried."""
