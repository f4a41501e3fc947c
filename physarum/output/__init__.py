"""What a run leaves behind: pictures, videos, arrays and their manifests."""
