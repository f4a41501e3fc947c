"""What a trace tells about a run: host launches, device operations and where the time goes."""
