"""What was measured on single GPUs, one JSON file each, named as `chunk_route.file_name` says."""
