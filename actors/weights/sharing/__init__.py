"""How two processes of one machine share memory of a device, and agree on what is in it."""
