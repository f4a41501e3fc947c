"""The model in Triton: `functions` are the model's functions under their own names, `launched` the kernels made of them."""
