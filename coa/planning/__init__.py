"""What a run will take and how fast it will be, before it is started: memory, places, and a simulation of its loop."""
