"""The grammar layer: specifications, backends, compilation and vocabulary masks."""
