"""What a served agent says, in the protocols of its clients."""
