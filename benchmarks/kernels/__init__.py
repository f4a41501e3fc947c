"""What is known of a kernel, and Nsight Compute."""
