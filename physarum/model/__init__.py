"""What a world is and how it steps. `stages.py` is the model; everything else here feeds it."""
