"""Everything that touches model weights and the device."""
