"""Standard operators and the simulator's step, fused ever further: each module measures one, and `fusion_lab.py` runs them."""
